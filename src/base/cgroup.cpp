#include "src/base/cgroup.h"

#include <algorithm>
#include <optional>

#include "lockstep/error.h"
#include "src/base/file.h"

namespace lockstep::base {
namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

bool contains(std::string_view list, std::string_view word) {
  const auto words = split(list, ',');
  return std::find(words.begin(), words.end(), word) != words.end();
}

// mountinfo writes space, tab, newline and backslash as \040 and so on: proc(5).
std::string unescape(std::string_view text) {
  const auto octal = [](char c) { return c >= '0' && c <= '7'; };
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size() && octal(text[i + 1]) && octal(text[i + 2]) &&
        octal(text[i + 3])) {
      plain += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                                 (text[i + 3] - '0'));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

std::string read_or_empty(const std::string& path) {
  try {
    return read_file(path);
  } catch (const Error&) {
    return "";  // no such file system here: nothing that could limit us
  }
}

struct Mount {
  int version;
  std::string inside;  // the cgroup that is shown at the mount point
  std::string point;
};

// One line: ID PARENT DEVICE ROOT POINT OPTIONS [TAGS ...] - TYPE SOURCE SUPER_OPTIONS
std::optional<Mount> parse_mount(std::string_view line, std::string_view controller) {
  const size_t dash = line.find(" - ");
  if (dash == std::string_view::npos) return std::nullopt;
  const auto front = split(line.substr(0, dash), ' ');
  const auto back = split(line.substr(dash + 3), ' ');
  if (front.size() < 5 || back.size() < 3) return std::nullopt;
  const bool version_2 = back[0] == "cgroup2";
  if (!version_2 && (back[0] != "cgroup" || !contains(back[2], controller))) return std::nullopt;
  return Mount{version_2 ? 2 : 1, unescape(front[3]), unescape(front[4])};
}

// This process's cgroup in the hierarchy: from lines ID:CONTROLLERS:PATH, v2 with no controllers.
std::optional<std::string> own_cgroup(std::string_view lines, int version,
                                      std::string_view controller) {
  for (const std::string_view line : split(lines, '\n')) {
    const size_t first = line.find(':');
    if (first == std::string_view::npos) continue;
    const size_t second = line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    if (version == 2 ? controllers.empty() : contains(controllers, controller)) {
      return std::string(line.substr(second + 1));
    }
  }
  return std::nullopt;
}

// The part of `name` below the mount's root. A name outside of it (a container that sees its own
// cgroup at the mount point, or "/.." in a namespace) leaves the mount point itself.
std::string below_mount(const std::string& name, const std::string& inside) {
  if (name.find("/..") != std::string::npos) return "";
  if (inside == "/") return name == "/" ? "" : name;
  if (name.starts_with(inside) && (name.size() == inside.size() || name[inside.size()] == '/')) {
    return name.substr(inside.size());
  }
  return "";
}

}  // namespace

std::vector<CgroupFolder> cgroups_of(const std::string& root, std::string_view controller) {
  const std::string prefix = root == "/" ? "" : root;
  const std::string mounts = read_or_empty(prefix + "/proc/self/mountinfo");
  const std::string names = read_or_empty(prefix + "/proc/self/cgroup");
  std::vector<CgroupFolder> folders;
  for (const std::string_view line : split(mounts, '\n')) {
    const auto mount = parse_mount(line, controller);
    if (!mount) continue;
    const auto name = own_cgroup(names, mount->version, controller);
    if (!name) continue;
    const std::string top = mount->inside == "/" ? "" : mount->inside;
    std::string below = below_mount(*name, mount->inside);
    for (;;) {
      const std::string shown = top + below;
      folders.push_back(
          {mount->version, prefix + mount->point + below, shown.empty() ? "/" : shown});
      if (below.empty()) break;
      below.resize(below.rfind('/'));
    }
  }
  return folders;
}

}  // namespace lockstep::base
