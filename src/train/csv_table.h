#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/train/row_data.h"

namespace lockstep::train {

/// Where a cell stands, for messages.
struct CsvPlace {
  uint32_t file = 0;
  uint64_t line = 0;
};

/// CSV files with the same columns, one after the other: one column to predict, all others numbers.
struct CsvTable {
  std::vector<std::string> paths;
  std::vector<std::string> names;  // [column], from the header; "" where there is none
  size_t target = 0;               // column

  std::vector<double> inputs;  // [row * input_count() + i], all finite
  std::vector<std::string> targets;
  std::vector<CsvPlace> places;  // [row]

  size_t input_count() const { return names.size() - 1; }
  size_t row_count() const { return targets.size(); }
  bool has_header() const { return !names.front().empty(); }

  /// "column 3 ('species')"
  std::string column_name(size_t column) const;
  /// "'iris.csv', line 17, column 5 ('species')", of a target
  std::string target_place(size_t row) const;
};

/// Adds the rows of one file; the first one decides about columns and header. The first row is a
/// header where `target` is a name, or where any of its cells, the target's aside, is not a number.
/// `target`: a column by its name or its number from 1; empty: the last one.
/// Throws Error(kInput), Error(kUsage) about the target.
void add_csv(CsvTable& table, std::string_view text, const std::string& path,
             const std::string& target);

/// The targets as numbers; absent where one is no number at all. A number that is not finite, or an
/// empty target, is Error(kInput).
std::optional<std::vector<double>> numeric_targets(const CsvTable& table);

/// A whole cell, blanks around it aside, as a number; "nan" and "inf" are numbers here. The same in
/// every locale.
std::optional<double> csv_number(std::string_view cell);

}  // namespace lockstep::train
