#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::train {

/// Which options were given, and the words given for each, not yet understood.
class OptionWords {
 public:
  /// From the words after `lockstep train`, and the TOML file that --config names among them.
  /// Throws Error(kUsage) for what is no option, Error(kInput) about the file.
  static OptionWords read(const std::vector<std::string>& arguments);

  bool has(std::string_view name) const { return words_.contains(name); }
  /// The last word; REQUIRES: has(name).
  const std::string& last(std::string_view name) const;
  /// All words; none where the option was not given.
  std::vector<std::string> all(std::string_view name) const;

 private:
  void add_command_line(const std::vector<std::string>& arguments);
  void add_config_file(const std::string& path);

  std::map<std::string, std::vector<std::string>, std::less<>> words_;  // names without "--"
};

/// The list of options that --help shows.
std::string option_help();

}  // namespace lockstep::train
