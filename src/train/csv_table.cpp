#include "src/train/csv_table.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "lockstep/error.h"
#include "src/base/file.h"
#include "src/base/number.h"
#include "src/train/csv_file.h"

namespace lockstep::train {
namespace {

using base::quote_path;

std::string_view trimmed(std::string_view cell) {
  const size_t first = cell.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return cell.substr(first, cell.find_last_not_of(" \t") - first + 1);
}

// A file may hold anything: a piece of it, fit for a message.
std::string shown(std::string_view cell) {
  constexpr size_t kMost = 60;
  return cell.size() <= kMost ? quote_path(cell) : quote_path(cell.substr(0, kMost)) + "...";
}

// Reads one file into the table.
class TableReader {
 public:
  TableReader(CsvTable& table, const std::string& path) : table_(table), path_(path) {}

  void read(std::string_view text, const std::string& target) {
    CsvReader reader(text, path_);
    std::vector<CsvCell> cells;
    const size_t rows_before = table_.row_count();
    if (!reader.next(cells)) refuse("there is not one line with anything in it.");
    if (take_first_row(cells, target)) add(cells);
    while (reader.next(cells)) add(cells);
    if (table_.row_count() == rows_before) {
      refuse("there is a header and not one row below it.");
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& problem) const {
    throw Error(ErrorCode::kInput,
                fmt::format("cannot read data from {}: {}", quote_path(path_), problem));
  }

  [[noreturn]] void refuse_cell(const CsvCell& cell, size_t column,
                                const std::string& problem) const {
    throw Error(ErrorCode::kInput, fmt::format("cannot read {}, line {}, {}: {}", quote_path(path_),
                                               cell.line, table_.column_name(column), problem));
  }

  // True: it is a row of data, no header.
  bool take_first_row(const std::vector<CsvCell>& cells, const std::string& target) {
    if (!table_.paths.empty()) return check_header(cells);
    if (cells.size() < 2) {
      refuse(
          fmt::format("line {} has one column; expected the numbers that a model gets and, in "
                      "another column, what it is to predict. Cells are separated by commas.",
                      cells.front().line));
    }
    table_.names.assign(cells.size(), "");
    std::optional<size_t> by_number;
    if (target.empty()) {
      by_number = cells.size() - 1;
    } else if (const auto number = base::number_from<size_t>(target);
               number && *number >= 1 && *number <= cells.size()) {
      by_number = *number - 1;
    }
    const bool has_header = !by_number || has_word_beside(cells, *by_number);
    if (has_header) take_names(cells);
    table_.target = find_target(target, by_number);
    return !has_header;
  }

  static bool has_word_beside(const std::vector<CsvCell>& cells, size_t target) {
    for (size_t i = 0; i < cells.size(); ++i) {
      const bool is_empty = trimmed(cells[i].text).empty();
      if (i != target && !is_empty && !csv_number(cells[i].text)) return true;
    }
    return false;
  }

  void take_names(const std::vector<CsvCell>& cells) {
    for (size_t i = 0; i < cells.size(); ++i) {
      const std::string_view name = trimmed(cells[i].text);
      table_.names[i] = name.empty() ? fmt::format("column {}", i + 1) : std::string(name);
    }
  }

  // A name wins over a number.
  size_t find_target(const std::string& target, const std::optional<size_t>& by_number) const {
    const auto& names = table_.names;
    const auto found = target.empty() ? names.end() : std::find(names.begin(), names.end(), target);
    if (found == names.end()) {
      if (by_number) return *by_number;
      throw Error(ErrorCode::kUsage,
                  fmt::format("--target {}: {} has no such column. Its {} columns are {}.",
                              shown(target), quote_path(path_), names.size(), list_of_names()));
    }
    if (std::find(found + 1, names.end(), target) != names.end()) {
      throw Error(ErrorCode::kUsage,
                  fmt::format("--target {}: {} has several columns of this name; give the number "
                              "of the column, counted from 1.",
                              shown(target), quote_path(path_)));
    }
    return static_cast<size_t>(found - names.begin());
  }

  std::string list_of_names() const {
    constexpr size_t kMost = 20;
    std::string list;
    for (size_t i = 0; i < std::min(table_.names.size(), kMost); ++i) {
      list += (i == 0 ? "" : ", ") + shown(table_.names[i]);
    }
    return table_.names.size() > kMost ? list + ", ..." : list;
  }

  bool check_header(const std::vector<CsvCell>& cells) {
    if (!table_.has_header()) return true;
    for (size_t i = 0; i < std::max(cells.size(), table_.names.size()); ++i) {
      const std::string_view here = i < cells.size() ? trimmed(cells[i].text) : "";
      const std::string_view there =
          i < table_.names.size() ? std::string_view(table_.names[i]) : "";
      if (here == there || (here.empty() && i < cells.size() && i < table_.names.size())) continue;
      refuse(
          fmt::format("its header has {} as column {}, that of {} has {}: the columns of all "
                      "files must be the same.",
                      shown(here), i + 1, quote_path(table_.paths.front()), shown(there)));
    }
    return false;
  }

  void add(const std::vector<CsvCell>& cells) {
    if (cells.size() != table_.names.size()) {
      throw Error(
          ErrorCode::kInput,
          fmt::format("cannot read {}, line {}: {} {}, but {} columns are expected as in the "
                      "first line. A comma inside a cell needs quotes around the cell.",
                      quote_path(path_), cells.front().line, cells.size(),
                      cells.size() == 1 ? "cell" : "cells", table_.names.size()));
    }
    for (size_t i = 0; i < cells.size(); ++i) {
      if (i != table_.target) table_.inputs.push_back(input(cells[i], i));
    }
    const CsvCell& target = cells[table_.target];
    if (trimmed(target.text).empty()) refuse_cell(target, table_.target, "the cell is empty.");
    table_.targets.emplace_back(trimmed(target.text));
    table_.places.push_back({static_cast<uint32_t>(table_.paths.size()), target.line});
  }

  double input(const CsvCell& cell, size_t column) const {
    if (trimmed(cell.text).empty()) {
      refuse_cell(cell, column, "the cell is empty; expected a number.");
    }
    const auto number = csv_number(cell.text);
    if (!number) {
      refuse_cell(
          cell, column,
          fmt::format("{} is no number (with a point, as in 0.5 or 3e-4).", shown(cell.text)));
    }
    // float32 is what the model gets.
    if (!(std::fabs(*number) <= std::numeric_limits<float>::max())) {
      refuse_cell(
          cell, column,
          fmt::format("{} is not finite; expected a number up to 3.4e38.", shown(cell.text)));
    }
    return *number;
  }

  CsvTable& table_;
  const std::string& path_;
};

}  // namespace

std::string CsvTable::column_name(size_t column) const {
  if (names[column].empty()) return fmt::format("column {}", column + 1);
  return fmt::format("column {} ({})", column + 1, shown(names[column]));
}

std::string CsvTable::target_place(size_t row) const {
  return fmt::format("{}, line {}, {}", quote_path(paths[places[row].file]), places[row].line,
                     column_name(target));
}

void add_csv(CsvTable& table, std::string_view text, const std::string& path,
             const std::string& target) {
  TableReader(table, path).read(text, target);
  table.paths.push_back(path);
}

std::optional<std::vector<double>> numeric_targets(const CsvTable& table) {
  std::vector<double> values;
  for (const std::string& text : table.targets) {
    const auto number = csv_number(text);
    if (!number) return std::nullopt;
    values.push_back(*number);
  }
  for (size_t row = 0; row < values.size(); ++row) {
    if (std::fabs(values[row]) <= std::numeric_limits<float>::max()) continue;
    throw Error(ErrorCode::kInput,
                fmt::format("cannot read {}: {} is not finite; expected a number "
                            "up to 3.4e38, or the name of a class.",
                            table.target_place(row), shown(table.targets[row])));
  }
  return values;
}

std::optional<double> csv_number(std::string_view cell) {
  cell = trimmed(cell);
  if (cell.starts_with('+') && cell.size() > 1 && cell[1] != '-') cell.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (end != cell.data() + cell.size()) return std::nullopt;
  if (error == std::errc::result_out_of_range) {
    // Too small for a double is 0 to every float; too large is infinite.
    const bool is_small = cell.find("e-") != cell.npos || cell.find("E-") != cell.npos;
    return is_small ? 0.0 : std::numeric_limits<double>::infinity();
  }
  if (error != std::errc()) return std::nullopt;
  return value;
}

}  // namespace lockstep::train
