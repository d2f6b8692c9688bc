#include "src/cli/previous_run.h"

#include <filesystem>

#include "lockstep/error.h"
#include "src/base/number.h"
#include "src/cli/result_file.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kMostFolders = 10'000;  // looked through beside the run

// The folder beside `out` whose result.json was written last.
std::optional<fs::path> newest_beside(const fs::path& out) {
  std::error_code error;
  const fs::path own = fs::weakly_canonical(out, error);
  const fs::path parent = out.has_parent_path() ? out.parent_path() : fs::path(".");
  std::optional<fs::path> newest;
  fs::file_time_type newest_time;
  int seen = 0;
  for (fs::directory_iterator entry(parent, error), end;
       !error && entry != end && seen < kMostFolders; entry.increment(error), ++seen) {
    std::error_code none;
    const auto time = fs::last_write_time(entry->path() / "result.json", none);
    if (none || fs::weakly_canonical(entry->path(), none) == own) continue;
    if (newest && time <= newest_time) continue;
    newest = entry->path();
    newest_time = time;
  }
  return newest;
}

}  // namespace

std::optional<std::string> change_since_previous_run(const std::string& out,
                                                     const std::string& recipe,
                                                     const report::Product& product) {
  const auto folder = newest_beside(out);
  if (!folder) return std::nullopt;
  std::map<std::string, std::string> before;
  try {
    before = read_result(folder->string()).recipe;
  } catch (const Error&) {
    return std::nullopt;  // not one of ours, or half written: none of this run's business
  }
  const auto now = flat_recipe(recipe);
  for (const char* field : {"model.kind", "data.content_hash"}) {
    if (before[field] != now.at(field)) return std::nullopt;
  }
  const bool is_scaled = product.scale != report::LearningRateScale::kNone;
  const char* rate = "optimizer.learning_rate";
  if (!is_scaled && before[rate] != now.at(rate)) return std::nullopt;
  const auto global_batch = base::number_from<uint64_t>(before["global_batch"]);
  if (!global_batch) return std::nullopt;
  return report::product_change_line(*global_batch, product, folder->lexically_normal().string());
}

}  // namespace lockstep::cli
