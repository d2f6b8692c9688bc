// lockstep: the command line. Streams and exit statuses are decided here and in the commands.

#include <fcntl.h>
#include <unistd.h>

#include <string>
#include <vector>

#include <fmt/format.h>

#include "lockstep/error.h"
#include "src/base/quote_path.h"
#include "src/cli/command.h"
#include "src/cli/console.h"
#include "src/cli/result_file.h"
#include "src/train/recipe.h"

namespace lockstep::cli {
namespace {

struct Command {
  const char* name;
  int (*function)(const std::vector<std::string>& arguments);
  const char* text;
};

constexpr Command kCommands[] = {
    {"train", train_command, "train a GPT on text or token files, by several replicas"},
    {"run", run_command, "start N replicas of a program that uses the library"},
    {"verify", verify_command,
     "train the same recipe by several numbers of replicas, compare the bits"},
    {"compare", compare_command, "where two runs first differ, and the likely reason"},
};

std::string usage() {
  std::string text = R"(usage: lockstep COMMAND ...

Data-parallel training whose result is the same to the last bit for any number of replicas.

)";
  for (const Command& command : kCommands) {
    text += fmt::format("  {:<9} {}\n", command.name, command.text);
  }
  text += fmt::format("  {:<9} {}\n", "version", "what this program is and was built with");
  return text + "\n`lockstep COMMAND --help` says more.";
}

int version() {
  Console().print(fmt::format("lockstep {} (LibTorch {}, {})", LOCKSTEP_VERSION,
                              train::torch_version(), compiler_name()));
  return kSuccess;
}

int dispatch(const std::vector<std::string>& words) {
  const std::string& name = words.front();
  const std::vector<std::string> arguments(words.begin() + 1, words.end());
  if (name == "help" || name == "--help" || name == "-h") {
    Console().print(usage());
    return kSuccess;
  }
  if (name == "version" || name == "--version") return version();
  for (const Command& command : kCommands) {
    if (name == command.name) return command.function(arguments);
  }
  throw Error(ErrorCode::kUsage, fmt::format("there is no command {}. `lockstep help` lists them.",
                                             base::quote_path(name)));
}

// Started without some of the three streams, we would open our files in their places and print into
// them.
void open_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) static_cast<void>(::open("/dev/null", O_RDWR));
  }
}

// The commands let errors through only before anything has started; what went on longer says
// Failed.
int status_of(const Error& error) {
  const bool is_ours = error.code() == ErrorCode::kInternal || error.code() == ErrorCode::kDiverged;
  return is_ours ? kFailure : kWrongUsage;
}

int main_status(const std::vector<std::string>& words) {
  Console console;
  try {
    if (words.empty()) {
      console.warn(usage());
      return kWrongUsage;
    }
    return dispatch(words);
  } catch (const Failed& failed) {
    return failed.status;
  } catch (const OutputClosed&) {
    return kBrokenOutput;
  } catch (const Error& error) {
    console.warn(fmt::format("lockstep: {}", error.what()));
    return status_of(error);
  } catch (const std::exception& error) {
    console.warn(fmt::format("lockstep: unexpected error: {}", error.what()));
    return kFailure;
  }
}

}  // namespace
}  // namespace lockstep::cli

int main(int argc, char** argv) {
  lockstep::cli::open_standard_streams();
  return lockstep::cli::main_status(std::vector<std::string>(argv + 1, argv + argc));
}
