// bin/lockstep as somebody uses it.

#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <algorithm>

#include "src/base/topology.h"
#include "src/cli/command_test_support.h"
#include "src/report/comma_locale.h"

namespace lockstep::cli {
namespace {

using launch::Program;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

size_t count_of(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

std::string last_line(const std::string& text) {
  const auto lines = lines_of(text);
  return lines.empty() ? "" : lines.back();
}

class TrainCommand : public CommandTest {};
class RunCommand : public CommandTest {};
class VerifyCommand : public CommandTest {};
class CompareCommand : public CommandTest {};

TEST_F(TrainCommand, TheFirstLineStatesTheProduct) {
  const Ran ran = train("run");
  ASSERT_EQ(ran.status, 0) << ran.all();
  EXPECT_EQ(
      ran.out_lines().front(),
      "global batch 8 over 3 replicas (3 + 3 + 2), in microbatches of 1; 13 updates per epoch; "
      "learning rate 3e-4 (unscaled)");
}

TEST_F(TrainCommand, AnotherProductThanThatOfTheLastRunBesideIsSaid) {
  EXPECT_THAT(train("a", {"--global-batch", "4"}).out, Not(HasSubstr("global batch was")));
  EXPECT_THAT(train("b").out_lines()[1],
              AllOf(HasSubstr("global batch was 4 (in " + path("a") + "), is now 8"),
                    HasSubstr("the learning rate did not follow and stays 3e-4")));
  EXPECT_THAT(train("c").out, Not(HasSubstr("global batch was")));
  EXPECT_THAT(train("d", {"--global-batch", "12", "--lr", "1"}).out,
              Not(HasSubstr("global batch was")));
  EXPECT_THAT(train("e", {"--global-batch", "16", "--lr-scale", "sqrt", "--base-batch", "4"}).out,
              AllOf(HasSubstr("global batch was 12 (in " + path("d") + "), is now 16; "),
                    HasSubstr("learning rate 6e-4 (3e-4 scaled")));
}

TEST_F(TrainCommand, WritesOneLineAStepAndNoneAReplica) {
  std::string reference;
  for (const char* replicas : {"1", "2", "5"}) {
    const std::string out = std::string("run-") + replicas;
    const Ran ran = train(out, {"--replicas", replicas, "--progress", "plain"});
    ASSERT_EQ(ran.status, 0) << ran.all();
    EXPECT_EQ(metrics(out).size(), 5u);
    EXPECT_EQ(count_of(ran.out, "\nstep 1/5 "), 1u) << ran.out;
    EXPECT_EQ(count_of(ran.out, "\nstep 5/5 "), 1u) << ran.out;
    const std::string text = base::read_file(path(out) + "/metrics.jsonl");
    if (reference.empty()) reference = text;
    EXPECT_EQ(text, reference);
    EXPECT_EQ(lines_of(base::read_file(path(out) + "/timings.jsonl")).size(), 5u);
  }
}

TEST_F(TrainCommand, TellsWhereTheResultsAreAndHowToProveThem) {
  const Ran ran = train("ein Ordner für's Öl");
  ASSERT_EQ(ran.status, 0) << ran.all();
  EXPECT_THAT(ran.out, HasSubstr("results      " + path("ein Ordner für's Öl")));
  EXPECT_THAT(ran.out, HasSubstr("\nstate hash   "));
  EXPECT_THAT(last_line(ran.out), StartsWith("prove it     "));
  EXPECT_THAT(last_line(ran.out),
              HasSubstr(" verify '" + path("ein Ordner für'\\''s Öl") + "' --steps 1..5"));
  EXPECT_THAT(result("ein Ordner für's Öl"), HasSubstr("\"complete\": true"));
}

TEST_F(TrainCommand, PrintsNothingOnAPipeThatMovesTheCursor) {
  const Ran ran = train("run", {"--sample", "5"});
  ASSERT_EQ(ran.status, 0) << ran.all();
  EXPECT_THAT(ran.out, Not(HasSubstr("\x1b")));
  EXPECT_THAT(ran.out, Not(HasSubstr("\r")));
  EXPECT_THAT(ran.out, HasSubstr("  | a sample\n  | \\x1b[31m\\xff\n"));
}

TEST_F(TrainCommand, DrawsABarOnATerminal) {
  misbehave("0:pause=150@2;0:pause=150@4");
  Program program(lockstep_command(train_words("run")), Program::Place::kTerminal);
  ASSERT_EQ(program.wait(), 0) << program.output();
  EXPECT_THAT(program.output(), HasSubstr("\r"));
  EXPECT_THAT(program.output(), HasSubstr("\x1b[K"));
  EXPECT_THAT(program.output(), HasSubstr("step 5/5  ["));
}

TEST_F(TrainCommand, ABarFitsIntoANarrowTerminal) {
  Program program({"sh",
                   "-c",
                   "stty cols 20; exec \"$@\"",
                   "sh",
                   bin_path("lockstep"),
                   "train",
                   "--data",
                   text_,
                   "--layers",
                   "1",
                   "--heads",
                   "1",
                   "--width",
                   "8",
                   "--context",
                   "10",
                   "--steps",
                   "5",
                   "--seed",
                   "1",
                   "--replicas",
                   "2",
                   "--out",
                   path("run")},
                  Program::Place::kTerminal);
  ASSERT_EQ(program.wait(), 0) << program.output();
  for (const std::string& line : lines_of(program.output())) {
    if (line.find("step 5/5") == std::string::npos || line.find("\x1b[K") == std::string::npos)
      continue;
    const size_t begin = line.rfind("step 5/5");
    EXPECT_LE(line.find("\x1b[K", begin) - begin, 20u) << line;
  }
  EXPECT_THAT(program.output(), HasSubstr("step 5/5"));
}

TEST_F(TrainCommand, ADumbTerminalAndNoneGetLines) {
  ::setenv("TERM", "dumb", 1);
  Program dumb(lockstep_command(train_words("dumb")), Program::Place::kTerminal);
  ASSERT_EQ(dumb.wait(), 0) << dumb.output();
  EXPECT_THAT(dumb.output(), Not(HasSubstr("\x1b")));
  const Ran none = train("none", {"--progress", "none"});
  EXPECT_THAT(none.out, Not(HasSubstr("step 5/5")));
}

TEST_F(TrainCommand, WhatAllReplicasSayIsShownOnce) {
  misbehave("*:say=careful@2;2:say=only me@3;*:say=careful@4;1:out=to stdout@1");
  const Ran ran = train("run");
  ASSERT_EQ(ran.status, 0) << ran.all();
  EXPECT_EQ(count_of(ran.error, "careful"), 2u) << ran.error;
  EXPECT_EQ(count_of(ran.error, "[rank 2] only me"), 1u) << ran.error;
  EXPECT_EQ(count_of(ran.error, "[rank 1] to stdout"), 1u) << ran.error;
}

TEST_F(TrainCommand, KeepsTheStatusOfTheFirstFailure) {
  misbehave("1:exit=3@3;0:pause=100@4;2:pause=100@4");
  const Ran ran = train("run");
  EXPECT_EQ(ran.status, 3) << ran.all();
  EXPECT_THAT(ran.error, HasSubstr("rank 1 failed first"));
  EXPECT_THAT(ran.error, HasSubstr("in step 3"));
  EXPECT_THAT(result("run"), HasSubstr("\"complete\": false"));
  EXPECT_GE(metrics("run").size(), 2u);
  EXPECT_TRUE(launch::all_gone());
}

TEST_F(TrainCommand, TheMessageOfTheFailureStandsLast) {
  misbehave("2:throw=boom-2@2;0:pause=100@3;1:pause=100@3");
  const Ran ran = train("run");
  EXPECT_EQ(ran.status, 1) << ran.all();
  const auto lines = ran.error_lines();
  const std::vector<std::string> tail(lines.end() - std::min<std::ptrdiff_t>(6, std::ssize(lines)),
                                      lines.end());
  EXPECT_THAT(tail, Contains(HasSubstr("rank 2 failed first")));
  EXPECT_THAT(tail, Contains(HasSubstr("step 2")));
  EXPECT_THAT(tail, Contains(HasSubstr("boom-2")));
}

TEST_F(TrainCommand, ASignalIsNamedAndCounted) {
  misbehave("1:signal=11@2;0:pause=100@3;2:pause=100@3");
  const Ran ran = train("run");
  EXPECT_EQ(ran.status, 128 + SIGSEGV) << ran.all();
  EXPECT_THAT(ran.error, HasSubstr("Segmentation fault"));
  EXPECT_THAT(result("run"), HasSubstr("\"rank\": 1"));
}

TEST_F(TrainCommand, AKilledReplicaCostsNothingButALine) {
  misbehave("1:signal=9@2");
  const Ran ran = train("run");
  EXPECT_EQ(ran.status, 0) << ran.all();
  EXPECT_THAT(ran.out, HasSubstr("death        rank 1 was killed by signal 9 (Killed) in step 2"));
  EXPECT_THAT(result("run"), HasSubstr("\"deaths\": 1"));
  EXPECT_EQ(metrics("run").size(), 5u);
}

TEST_F(TrainCommand, ReplicasThatDisagreeAreAFailure) {
  misbehave("2:loss@3;*:pause=100@4");
  const Ran ran = train("run");
  EXPECT_EQ(ran.status, 1) << ran.all();
  EXPECT_THAT(last_line(ran.error), HasSubstr("step 3: the replicas disagree about the loss"));
  EXPECT_THAT(metrics("run"), testing::SizeIs(2));
  EXPECT_THAT(result("run"), HasSubstr("\"complete\": false"));
  EXPECT_THAT(result("run"), HasSubstr("\"steps\": 2"));
  EXPECT_TRUE(launch::all_gone());
}

TEST_F(TrainCommand, AnEarlyEndIsNoSuccess) {
  misbehave("*:done@3");
  const Ran ran = train("run");
  EXPECT_EQ(ran.status, 1) << ran.all();
  EXPECT_THAT(last_line(ran.error), HasSubstr("ended with status 0 after 3 of 5 steps"));
}

TEST_F(TrainCommand, AFailureBeforeTheFirstStepSaysSo) {
  misbehave("*:exit=2@1");
  const Ran ran = train("run");
  EXPECT_EQ(ran.status, 2) << ran.all();
  EXPECT_THAT(result("run"), HasSubstr("\"steps\": 0"));
  EXPECT_THAT(result("run"), HasSubstr("\"loss\": null"));
}

TEST_F(TrainCommand, CtrlCEndsEverything) {
  misbehave("*:hang@3");
  Program program(lockstep_command(train_words("run", {"--progress", "plain"})),
                  Program::Place::kTerminal);
  ASSERT_TRUE(program.wait_for_output("step 1/5")) << program.output();
  ASSERT_EQ(::write(program.output_fd(), "\x03", 1), 1);
  EXPECT_EQ(program.wait(), 130) << program.output();
  EXPECT_THAT(program.output(), HasSubstr("interrupted"));
  EXPECT_TRUE(launch::all_gone());
  EXPECT_THAT(result("run"), HasSubstr("\"complete\": false"));
}

TEST_F(TrainCommand, TerminationEndsEverything) {
  misbehave("*:hang@3");
  Program program(lockstep_command(train_words("run", {"--progress", "plain"})));
  ASSERT_TRUE(program.wait_for_output("step 1/5")) << program.output();
  ::kill(program.pid(), SIGTERM);
  EXPECT_EQ(program.wait(), 143) << program.error_output();
  EXPECT_TRUE(launch::all_gone());
}

TEST_F(TrainCommand, AClosedPipeEndsTheRun) {
  misbehave("*:pause=300@2");
  Program program(lockstep_command(train_words("run", {"--progress", "plain"})));
  ASSERT_TRUE(program.wait_for_output("step 1/5")) << program.output();
  program.close_output();
  EXPECT_EQ(program.wait(), 141) << program.error_output();
  EXPECT_TRUE(launch::all_gone());
}

TEST_F(TrainCommand, RunsWithoutStandardStreams) {
  Words words = {"sh", "-c", "exec \"$@\" <&- >&- 2>&-", "sh"};
  const Words command = lockstep_command(train_words("run"));
  words.insert(words.end(), command.begin(), command.end());
  EXPECT_EQ(run_program(words).status, 0);
  EXPECT_EQ(metrics("run").size(), 5u);  // and nothing else in the file
  EXPECT_THAT(metrics("run"), testing::Each(StartsWith("{\"step\":")));
}

TEST_F(TrainCommand, AFullDiskBelowTheOutputIsNamed) {
  Words words = {"sh", "-c", "exec \"$@\" >/dev/full", "sh"};
  const Words command = lockstep_command(train_words("run"));
  words.insert(words.end(), command.begin(), command.end());
  const Ran ran = run_program(words);
  EXPECT_NE(ran.status, 0);
  EXPECT_NE(ran.status, 141);
  EXPECT_THAT(ran.error, HasSubstr("cannot write to standard output: No space left"));
}

TEST_F(TrainCommand, AFullDiskUnderTheResultsIsAFailureOfTheRun) {
  misbehave("0:limit=300@1;*:pause=200@2");
  Words words = {"sh", "-c", "trap '' XFSZ; exec \"$@\"", "sh"};
  const Words command = lockstep_command(train_words("run"));
  words.insert(words.end(), command.begin(), command.end());
  const Ran ran = run_program(words);
  EXPECT_EQ(ran.status, 1) << ran.all();
  EXPECT_THAT(ran.error, HasSubstr("File too large"));
  EXPECT_THAT(ran.error, HasSubstr(".jsonl"));
  EXPECT_TRUE(launch::all_gone());
}

TEST_F(TrainCommand, TwoRunsDoNotShareAFolder) {
  misbehave("*:hang@3");
  Program first(lockstep_command(train_words("run", {"--progress", "plain"})));
  ASSERT_TRUE(first.wait_for_output("step 1/5")) << first.output();
  Program second(lockstep_command(train_words("run")));
  EXPECT_EQ(second.wait(), 2) << second.error_output();
  EXPECT_THAT(second.error_output(), HasSubstr("--out"));
  ::kill(first.pid(), SIGINT);
  EXPECT_EQ(first.wait(), 130);
  const Ran third = train("run");
  EXPECT_EQ(third.status, 2) << third.all();
  EXPECT_THAT(third.error, HasSubstr("holds a run already"));
}

TEST_F(TrainCommand, AFailedStartLeavesTheFolderUsable) {
  misbehave("*:exit=3@1");
  EXPECT_EQ(train("run").status, 3);
  folder_.write("run/parameter_hashes.jsonl", "{\"step\":1,\"parameters\":{}}\n");
  misbehave("");
  const Ran ran = train("run");
  EXPECT_EQ(ran.status, 0) << ran.all();
  EXPECT_FALSE(std::filesystem::exists(path("run/parameter_hashes.jsonl")));
}

TEST_F(TrainCommand, WarnsWhereThreadsExceedCores) {
  const Ran ran = train("run", {"--replicas", "8", "--threads", "64"});
  EXPECT_EQ(ran.status, 0) << ran.all();
  EXPECT_EQ(count_of(ran.error, "warning: 8 replicas x 64 threads = 512 threads on "), 1u)
      << ran.error;
}

TEST_F(TrainCommand, SaysWhatItIsInEveryLocale) {
  const report::CommaLocale comma;
  ::setenv("LC_ALL", "de_DE.UTF-8", 1);
  const Ran ran = train("run", {"--lr", "0.5"});
  ASSERT_EQ(ran.status, 0) << ran.all();
  EXPECT_THAT(ran.out_lines().front(), HasSubstr("learning rate 0.5"));
  EXPECT_THAT(metrics("run")[0], HasSubstr("\"learning_rate\":0.5"));
}

TEST_F(TrainCommand, AveragingOffIsSaid) {
  misbehave("1:loss@3;2:hash@2");
  const Ran ran = train("run", {"--averaging", "off"});
  EXPECT_EQ(ran.status, 0) << ran.all();
  EXPECT_THAT(ran.out, HasSubstr("averaging    off"));
  EXPECT_THAT(ran.out, HasSubstr("(of rank 0's copy)"));
  EXPECT_THAT(ran.out, Not(HasSubstr("prove it")));
}

TEST_F(TrainCommand, RefusesWithStatusTwoAndFewLines) {
  const std::string odd = folder_.write("odd.bin", std::string(101, 'x'));
  const std::string empty = folder_.write("empty.txt", "");
  const std::string config = folder_.write("bad.toml", "widht = 3\n");
  const std::vector<Words> refused = {
      {"--data", path("none.txt")},
      {"--data", empty},
      {"--data", "/dev/null"},
      {"--data", odd},
      {"--data", ""},
      {"--context", "5000"},
      {"--global-batch", "0"},
      {"--heads", "3", "--width", "32"},
      {"--lr", "nan"},
      {"--replicas", "0"},
      {"--replicas", "99999999999999999999999"},
      {"--no-such-flag"},
      {"--no-such\nflag"},
      {"--config", path("none.toml")},
      {"--config", config},
      {"--out", text_},
      {"--out", "/proc/nope"},
      {"--kill", "7@1"},
      {"--width", "1048576", "--layers", "10000"},
      {"--validation", path("none.txt")},
      {"--model", "cnn"},
      {"--log-dir", ""},
      {"--tee", "3"},
      {"--tee", "first"},
      {"--resume"},
      {"stray"},
  };
  for (const Words& words : refused) {
    const Ran ran = train("run", words);
    EXPECT_EQ(ran.status, 2) << words.front() << "\n" << ran.all();
    EXPECT_LE(ran.error_lines().size(), 2u) << ran.error;
    EXPECT_THAT(ran.error, StartsWith("lockstep: "));
    EXPECT_THAT(ran.out, IsEmpty());
    EXPECT_LT(ran.seconds, 2) << words.front();
    EXPECT_THAT(ran.error, Not(HasSubstr("unexpected")));
  }
  EXPECT_FALSE(std::filesystem::exists(path("run/metrics.jsonl")));
}

TEST_F(TrainCommand, RefusesAMissingWorker) {
  ::setenv("LOCKSTEP_WORKER", path("no worker").c_str(), 1);
  const Ran ran = train("run");
  EXPECT_EQ(ran.status, 2);
  EXPECT_THAT(ran.error, HasSubstr("no worker"));
  EXPECT_FALSE(std::filesystem::exists(path("run")));
}

TEST_F(TrainCommand, HelpGoesToStandardOutput) {
  const Ran ran = lockstep_words({"train", "--help"});
  EXPECT_EQ(ran.status, 0);
  EXPECT_THAT(ran.out, HasSubstr("--global-batch"));
  EXPECT_THAT(ran.error, IsEmpty());
}

TEST_F(CompareCommand, FindsEqualRunsEqual) {
  ASSERT_EQ(train("a", {"--replicas", "1"}).status, 0);
  ASSERT_EQ(train("b", {"--replicas", "4"}).status, 0);
  const Ran same = lockstep_words({"compare", path("a"), path("b")});
  EXPECT_EQ(same.status, 0) << same.all();
  EXPECT_THAT(last_line(same.out), StartsWith("same bits: 5 steps, state hash "));
}

TEST_F(CompareCommand, NamesTheFirstDifferenceAndItsReason) {
  ASSERT_EQ(train("a").status, 0);
  ASSERT_EQ(train("b", {"--seed", "8"}).status, 0);
  const Ran ran = lockstep_words({"compare", path("a"), path("b")});
  EXPECT_EQ(ran.status, 1) << ran.all();
  EXPECT_THAT(ran.out, HasSubstr("first difference: step 1, loss"));
  EXPECT_THAT(ran.out, HasSubstr("  seed: 7 in A, 8 in B"));
}

TEST_F(CompareCommand, ALongerRunGoesOn) {
  ASSERT_EQ(train("a").status, 0);
  ASSERT_EQ(train("b", {"--steps", "7"}).status, 0);
  const Ran ran = lockstep_words({"compare", path("a"), path("b")});
  EXPECT_EQ(ran.status, 1) << ran.all();
  EXPECT_THAT(ran.out,
              HasSubstr("no difference in the 5 steps that both have; B goes on to step 7"));
  EXPECT_THAT(ran.out, HasSubstr("\nparameter hash after step 5, the last of A: "));
  EXPECT_THAT(ran.out, HasSubstr("\nthe recipes differ: schedule.steps: 5 in A, 7 in B"));
}

TEST_F(CompareCommand, RefusesWhatIsNoPairOfRuns) {
  for (const Words& words : {Words{}, Words{path("")}, Words{path(""), path("")},
                             Words{path("none"), path("none")}, Words{"a", "b", "c"}}) {
    Words all = {"compare"};
    all.insert(all.end(), words.begin(), words.end());
    const Ran ran = lockstep_words(all);
    EXPECT_EQ(ran.status, 2) << ran.all();
    EXPECT_EQ(ran.error_lines().size(), 1u) << ran.error;
  }
  EXPECT_EQ(lockstep_words({"compare", "--help"}).status, 0);
}

Words verify_words(const Words& train_words, const Words& more) {
  Words words = {"verify"};
  for (size_t i = 1; i < train_words.size(); i += 2) {
    if (train_words[i] == "--replicas" || train_words[i] == "--out") continue;
    words.insert(words.end(), {train_words[i], train_words[i + 1]});
  }
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST_F(VerifyCommand, PrintsTwoTablesAndTheVerdict) {
  const Ran ran = lockstep_words(
      verify_words(train_words(""), {"--replicas", "1,2,3", "--out", path("v"), "--steps", "3"}));
  EXPECT_EQ(ran.status, 0) << ran.all();
  EXPECT_THAT(ran.out, HasSubstr("same global batch: 3 steps, seed 7"));
  EXPECT_THAT(ran.out, HasSubstr("same batch per replica: 2"));
  EXPECT_THAT(ran.out, HasSubstr("verdict: same bits by 1, 2, 3 replicas, 3 steps"));
  for (const char* run : {"replicas-1", "replicas-3", "scaled-1", "scaled-3"}) {
    EXPECT_TRUE(std::filesystem::exists(path("v/") + run + "/result.json")) << run;
  }
}

TEST_F(VerifyCommand, SaysWhereBitsDiffer) {
  // Rank 1 is there in one of the runs only, and nobody is left to disagree with it.
  misbehave("0:pause=100@1;0:exit=0@2;1:pause=200@2;1:loss@3");
  const Ran ran = lockstep_words(train_words("two", {"--replicas", "2", "--steps", "3"}));
  EXPECT_EQ(ran.status, 0) << ran.all();
  misbehave("");
  const Ran other = lockstep_words({"verify", path("two"), "--replicas", "1"});
  EXPECT_EQ(other.status, 1) << other.all();
  EXPECT_THAT(other.out, HasSubstr("verdict: OTHER BITS by 1 replica than the run's"));
  EXPECT_THAT(other.out, HasSubstr("first difference: step 3, loss"));
}

TEST_F(VerifyCommand, OneCountIsComparedWithAnother) {
  for (const char* count : {"1", "2"}) {
    const Ran ran = lockstep_words(
        verify_words(train_words(""), {"--replicas", count, "--out", path(count), "--steps", "2"}));
    EXPECT_EQ(ran.status, 0) << ran.all();
    EXPECT_THAT(ran.out, AnyOf(HasSubstr("same bits by 1, 2"), HasSubstr("same bits by 2, 1")));
  }
}

TEST_F(VerifyCommand, AFailedRunIsNoVerdict) {
  misbehave("1:exit=4@2;0:pause=100@2");
  const Ran ran = lockstep_words(
      verify_words(train_words(""), {"--replicas", "1,2", "--out", path("v"), "--steps", "2"}));
  EXPECT_EQ(ran.status, 4) << ran.all();
  EXPECT_THAT(ran.out, Not(HasSubstr("verdict")));
  EXPECT_THAT(ran.error, HasSubstr("the run by 2 replicas in " + path("v/replicas-2") + " failed"));
  EXPECT_THAT(ran.error, HasSubstr("rank 1 failed first"));
}

TEST_F(VerifyCommand, ConfirmsARunFromAnyFolder) {
  ASSERT_EQ(train("run").status, 0);
  const Ran ran = lockstep_words({"verify", path("run"), "--steps", "2..4"});
  EXPECT_EQ(ran.status, 0) << ran.all();
  EXPECT_THAT(last_line(ran.out),
              HasSubstr("same bits: the log of the run is confirmed for the steps 2 to 4"));
  EXPECT_TRUE(std::filesystem::exists(path("run/verify/replicas-1/result.json")));
  EXPECT_EQ(lockstep_words({"verify", path("run")}).status, 0);  // into another folder
}

// The replicas of the first row take the data away before the second row starts.
TEST_F(VerifyCommand, LooksAtTheDataOnceForAllRowsOfARecipe) {
  ASSERT_EQ(train("run").status, 0);
  const std::string worker = folder_.write("worker", "#!/bin/sh\nrm -f '" + text_ + "'\nexec '" +
                                                         bin_path("fake_worker") + "' \"$@\"\n");
  std::filesystem::permissions(worker, std::filesystem::perms::owner_all);
  ::setenv("LOCKSTEP_WORKER", worker.c_str(), 1);
  const Ran ran = lockstep_words({"verify", path("run"), "--replicas", "1,3"});
  EXPECT_EQ(ran.status, 0) << ran.all();
  EXPECT_FALSE(std::filesystem::exists(text_)) << "the test shows nothing";
}

TEST_F(VerifyCommand, FindsAForgedLog) {
  ASSERT_EQ(train("run").status, 0);
  std::string text = base::read_file(path("run/metrics.jsonl"));
  const size_t at = text.find("\"loss\":5.", text.find("\"step\":3"));
  ASSERT_NE(at, std::string::npos);
  char& digit = text[at + 10];
  digit = digit == '1' ? '2' : '1';
  base::write_file_atomically(path("run/metrics.jsonl"), text);
  const Ran ran = lockstep_words({"verify", path("run")});
  EXPECT_EQ(ran.status, 1) << ran.all();
  EXPECT_THAT(ran.out, HasSubstr("verdict: OTHER BITS"));
  EXPECT_THAT(ran.out, HasSubstr("first difference: step 3, loss"));
  EXPECT_EQ(lockstep_words({"verify", path("run"), "--steps", "4..5"}).status, 0);
}

TEST_F(VerifyCommand, RefusesBeforeAnythingIsTrained) {
  ASSERT_EQ(train("run").status, 0);
  ASSERT_EQ(train("off", {"--averaging", "off"}).status, 0);
  const Words recipe = train_words("");
  const std::vector<Words> refused = {
      {"verify"},
      {"verify", path("none")},
      {"verify", path("run"), "--steps", "0..3"},
      {"verify", path("run"), "--steps", "2..9"},
      {"verify", path("run"), "--steps", "4..2"},
      {"verify", path("run"), "--steps", "x"},
      {"verify", path("run"), "--lr", "3"},
      {"verify", path("run"), "--replicas"},
      {"verify", path("off")},
      verify_words(recipe, {"--replicas", "1,,2", "--out", path("v")}),
      verify_words(recipe, {"--replicas", "0,1", "--out", path("v")}),
      verify_words(recipe, {"--replicas", "1;2", "--out", path("v")}),
      verify_words(recipe, {"--replicas", "999", "--out", path("v")}),
      verify_words(recipe, {"--replicas", "2,1", "--kill", "1@1", "--out", path("v")}),
      verify_words(recipe, {"--averaging", "off", "--out", path("v")}),
      verify_words(recipe, {"--per-replica", "3", "--out", path("v")}),
      verify_words(recipe, {"--out", text_}),
      verify_words(recipe, {"--log-dir", path("logs"), "--out", path("v")}),
      verify_words(recipe, {"--tee", "0", "--out", path("v")}),
  };
  for (const Words& words : refused) {
    const Ran ran = lockstep_words(words);
    EXPECT_EQ(ran.status, 2) << words.back() << "\n" << ran.all();
    EXPECT_EQ(ran.error_lines().size(), 1u) << ran.error;
    EXPECT_THAT(ran.out, IsEmpty());
  }
  EXPECT_FALSE(std::filesystem::exists(path("v")));
  EXPECT_EQ(lockstep_words({"verify", "--help"}).status, 0);
}

TEST_F(RunCommand, PutsTheRankBeforeEachLineAndKeepsTheStatus) {
  const Ran ran = lockstep_words({"run", "-n", "3", "--", "sh", "-c", "echo hello $LOCKSTEP_RANK"});
  EXPECT_THAT(ran.out_lines(), testing::UnorderedElementsAre("[rank 0] hello 0", "[rank 1] hello 1",
                                                             "[rank 2] hello 2"));
}

TEST_F(RunCommand, TakesTheCountWithoutABlank) {
  EXPECT_EQ(lockstep_words({"run", "-n3", "--", "echo", "x"}).out_lines().size(), 3u);
  EXPECT_EQ(lockstep_words({"run", "-n=2", "--", "echo", "x"}).out_lines().size(), 2u);
}

TEST_F(RunCommand, KeepsWhatReplicasPrintAndShowsOnlyTheRanksAskedFor) {
  const Ran ran = lockstep_words({"run", "-n3", "--log-dir", path("logs"), "--tee", "0,2", "--",
                                  "sh", "-c", "echo hello $RANK"});
  EXPECT_EQ(ran.status, 0) << ran.all();
  EXPECT_THAT(ran.out_lines(),
              testing::UnorderedElementsAre("[rank 0] hello 0", "[rank 2] hello 2"));
  EXPECT_EQ(base::read_file(path("logs/rank-1.out")), "hello 1\n");
}

TEST_F(RunCommand, BindsReplicasToTheirCoresWhereAskedTo) {
  const Words program = {"--", "grep", "Cpus_allowed_list", "/proc/self/status"};
  const auto run = [&](Words words) {
    words.insert(words.begin(), {"run", "-n1"});
    words.insert(words.end(), program.begin(), program.end());
    return lockstep_words(words);
  };
  const std::string own = base::format_cpu_list(base::allowed_cpus());
  EXPECT_EQ(run({"--pin", "off"}).out, "[rank 0] Cpus_allowed_list:\t" + own + "\n");
  const Ran on = run({"--pin", "on"});
  EXPECT_THAT(on.error_lines(), ElementsAre(StartsWith("lockstep: pinned to core ")));
  // Named by its lowest CPU.
  const std::string lowest = on.error.substr(25, on.error.size() - 26);
  EXPECT_THAT(on.out, StartsWith("[rank 0] Cpus_allowed_list:\t" + lowest));
  const Ran refused = run({"--pin", "on", "--threads", "1024"});
  EXPECT_EQ(refused.status, 2) << refused.all();
  EXPECT_THAT(refused.error, HasSubstr("1 replica x 1024 threads = 1024 threads cannot each"));
  EXPECT_EQ(run({"--pin", "yes"}).status, 2);
}

// On one CPU only, whatever the machine has.
Words on_one_cpu(const Words& command) {
  Words words = {"taskset", "-c", std::to_string(*base::allowed_cpus().begin())};
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

TEST_F(RunCommand, TakesAsManyReplicasAsTheAffinityMaskHoldsAndSaysWhy) {
  for (const char* threads : {"1", "3"}) {
    const Ran ran = run_program(on_one_cpu(
        lockstep_command({"run", "--threads", threads, "--", "sh", "-c", "echo $WORLD_SIZE"})));
    EXPECT_EQ(ran.out, "[rank 0] 1\n") << ran.all();
    EXPECT_THAT(ran.error, StartsWith(std::string("lockstep: 1 replica, ") + threads + " thread"));
    EXPECT_THAT(ran.error, HasSubstr("1 physical core in the affinity mask; "));
  }
}

TEST_F(TrainCommand, TakesAsManyReplicasAsTheAffinityMaskHoldsAndSaysWhy) {
  Words words = {"train", "--data",    text_, "--layers", "1", "--heads", "1",        "--width",
                 "8",     "--context", "10",  "--steps",  "2", "--out",   path("run")};
  const Ran ran = run_program(on_one_cpu(lockstep_command(words)));
  EXPECT_EQ(ran.status, 0) << ran.all();
  EXPECT_THAT(ran.out, HasSubstr("\nreplicas     1 (1 physical core in the affinity mask; "));
}

TEST_F(TrainCommand, ThreadsOfTheEnvironmentAreNotObeyedAndThatIsSaidOnce) {
  ::setenv("OMP_NUM_THREADS", "6", 1);
  const Ran ran = train("run", {"--threads", "1"});
  ::unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(ran.status, 0) << ran.all();
  EXPECT_EQ(count_of(ran.error, "OMP_NUM_THREADS=6 in the environment is not used"), 1u);
  EXPECT_THAT(ran.out, HasSubstr(", threads 1, "));
}

TEST_F(TrainCommand, RanksOfTheEnvironmentAreNotObeyedAndThatIsSaid) {
  Words words = {"env", "RANK=0", "WORLD_SIZE=abc", "LOCAL_RANK=0", "MASTER_ADDR=nowhere"};
  const Words command = lockstep_command(train_words("run", {"--replicas", "2"}));
  words.insert(words.end(), command.begin(), command.end());
  const Ran ran = run_program(words);
  EXPECT_EQ(ran.status, 0) << ran.all();
  for (const char* variable : {"RANK=0", "WORLD_SIZE=abc", "LOCAL_RANK=0", "MASTER_ADDR=nowhere"}) {
    EXPECT_THAT(ran.error, HasSubstr(std::string(": ") + variable + " in the environment"));
  }
}

TEST_F(TrainCommand, SaysWhereReplicasArePinnedAndWhyNot) {
  const Ran on = train("on", {"--replicas", "1", "--pin", "on"});
  EXPECT_EQ(on.status, 0) << on.all();
  EXPECT_THAT(on.out, testing::ContainsRegex("replicas     1 .*; pinned to core [0-9]+\n"));
  const Ran many = train("many", {"--replicas", "8", "--threads", "64"});
  EXPECT_THAT(many.out, HasSubstr("; not pinned: 8 replicas x 64 threads = 512 threads, "));
  const Ran off = train("off", {"--pin", "off"});
  EXPECT_THAT(off.out, Not(HasSubstr("pinned")));
  EXPECT_EQ(base::read_file(path("on/metrics.jsonl")), base::read_file(path("off/metrics.jsonl")));
  EXPECT_EQ(train("refused", {"--threads", "1000", "--pin", "on"}).status, 2);
  EXPECT_FALSE(std::filesystem::exists(path("refused")));
}

TEST_F(RunCommand, WarnsWhereWhatReplicasPrintIsLost) {
  const Ran ran = lockstep_words({"run", "-n2", "--tee=none", "--", "echo", "x"});
  EXPECT_EQ(ran.status, 0) << ran.all();
  EXPECT_THAT(ran.error_lines(), ElementsAre(HasSubstr("--tee none without --log-dir")));
  EXPECT_THAT(ran.out, IsEmpty());
}

TEST_F(RunCommand, RefusesLogsAndRanksThatCannotBe) {
  const std::string started = path("started");
  for (const Words& words : {Words{"--log-dir", text_}, Words{"--log-dir", "/proc/nope"},
                             Words{"--log-dir", ""}, Words{"--tee", "2"}, Words{"--tee", "0-"}}) {
    Words all = {"run", "-n2"};
    all.insert(all.end(), words.begin(), words.end());
    all.insert(all.end(), {"--", "touch", started});
    const Ran ran = lockstep_words(all);
    EXPECT_EQ(ran.status, 2) << ran.all();
    EXPECT_EQ(ran.error_lines().size(), 1u) << ran.error;
    EXPECT_THAT(ran.error, HasSubstr(words[0]));
  }
  EXPECT_FALSE(std::filesystem::exists(started));
}

TEST_F(TrainCommand, KeepsWhatEachReplicaSaysAndShowsOnlyTheRanksAskedFor) {
  misbehave("*:say=all of us@2;2:say=only me@3;1:out=to stdout@1");
  const Ran ran = train("run", {"--log-dir", path("logs"), "--tee", "1"});
  ASSERT_EQ(ran.status, 0) << ran.all();
  EXPECT_THAT(ran.error, HasSubstr("[rank 1] all of us"));
  EXPECT_THAT(ran.error, Not(HasSubstr("only me")));
  EXPECT_EQ(base::read_file(path("logs/rank-2.err")), "all of us\nonly me\n");
  EXPECT_EQ(base::read_file(path("logs/rank-0.err")), "all of us\n");
  EXPECT_EQ(base::read_file(path("logs/rank-1.out")), "to stdout\n");
}

TEST_F(TrainCommand, AFullDiskUnderTheLogsFailsTheRunAndNotTheTraining) {
  std::filesystem::create_directories(path("logs"));
  std::filesystem::create_symlink("/dev/full", path("logs/rank-1.err"));
  misbehave("1:say=lost@2");
  const Ran ran = train("run", {"--log-dir", path("logs")});
  EXPECT_EQ(ran.status, 1) << ran.all();
  EXPECT_THAT(ran.error, HasSubstr("rank-1.err': No space left on device"));
  EXPECT_EQ(metrics("run").size(), 5u);
  EXPECT_THAT(result("run"), HasSubstr("\"steps\": 5"));
}

TEST_F(RunCommand, TakesValuesWithEqualsSigns) {
  const Ran ran =
      lockstep_words({"run", "--replicas=2", "--threads=1", "--timeout=0", "--no-prefix", "--",
                      "sh", "-c", "echo $WORLD_SIZE $OMP_NUM_THREADS"});
  EXPECT_THAT(ran.out_lines(), ElementsAre("2 1", "2 1")) << ran.all();
}

TEST_F(RunCommand, HelpAfterTwoDashesIsTheProgramsOwn) {
  const Words program = {"--", "sh", "-c", "echo \"$1\"", "sh", "--help"};
  Words words = {"run", "-n", "1", "--no-prefix"};
  words.insert(words.end(), program.begin(), program.end());
  EXPECT_THAT(lockstep_words(words).out_lines(), ElementsAre("--help"));
  words.insert(words.begin() + 1, "-h");
  EXPECT_THAT(lockstep_words(words).out, StartsWith("usage: lockstep run"));
}

TEST_F(RunCommand, RefusesInOneLine) {
  for (const Words& words : {Words{"-n", "2"}, Words{"-n"}, Words{"-n", "0", "--", "true"},
                             Words{"-n", "x", "--", "true"}, Words{"-n", "257", "--", "true"},
                             Words{"--threads", "0", "true"}, Words{"--what", "true"},
                             Words{"--no-prefix=yes", "true"}, Words{"--"}}) {
    Words all = {"run"};
    all.insert(all.end(), words.begin(), words.end());
    const Ran ran = lockstep_words(all);
    EXPECT_EQ(ran.status, 2) << ran.all();
    EXPECT_EQ(ran.error_lines().size(), 1u) << ran.error;
    EXPECT_THAT(ran.error, HasSubstr("lockstep run --help"));
  }
}

TEST_F(RunCommand, AProgramThatIsNotThereIsNamed) {
  const Ran ran = lockstep_words({"run", "-n", "2", "--", "no-such-program"});
  EXPECT_EQ(ran.status, 127) << ran.all();
  EXPECT_THAT(ran.error, HasSubstr("no-such-program"));
}

TEST(MainCommand, HelpVersionAndUnknownWords) {
  const Ran help = lockstep_words({"help"});
  EXPECT_EQ(help.status, 0);
  for (const char* command : {"train", "run", "verify", "compare"}) {
    EXPECT_THAT(help.out, HasSubstr(std::string("\n  ") + command + " "));
  }
  EXPECT_EQ(lockstep_words({}).status, 2);
  EXPECT_THAT(lockstep_words({}).error, HasSubstr("usage: lockstep COMMAND"));
  const Ran version = lockstep_words({"--version"});
  EXPECT_EQ(version.status, 0);
  EXPECT_THAT(version.out, StartsWith("lockstep 0."));
  for (const char* word : {"trian", "", "-x", "\x1b[31m"}) {
    const Ran ran = lockstep_words({word});
    EXPECT_EQ(ran.status, 2);
    EXPECT_EQ(ran.error_lines().size(), 1u) << ran.error;
    EXPECT_THAT(ran.error, HasSubstr("there is no command"));
    EXPECT_THAT(ran.error, Not(HasSubstr("\x1b")));
  }
}

TEST(MainCommand, AClosedPipeIsTold) {
  const Ran ran =
      run_program({"bash", "-c", "trap '' PIPE; \"$0\" train --help | true; echo ${PIPESTATUS[0]}",
                   bin_path("lockstep")});
  // Either everything was written before the reader left, or 141.
  EXPECT_THAT(ran.out, testing::AnyOf("0\n", "141\n"));
}

}  // namespace
}  // namespace lockstep::cli
