#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

// The data of an MLP: rows of numbers, each with a class or a real number to predict. Everything
// that is wrong with them is found while loading and thrown as Error(kInput) with path, place and
// numbers.

namespace lockstep::train {

enum class Task { kClassification, kRegression };

struct RowDataOptions {
  /// One of: a folder with MNIST's files (train-images-idx3-ubyte, train-labels-idx1-ubyte; plain
  /// or .gz); an idx file of images (its labels are found beside it by name); an idx file of images
  /// and one of labels, in any order; CSV files with the same columns, joined in the order given.
  /// Idx and gzip files are known by their first bytes, CSV by being text.
  std::vector<std::string> paths;

  /// Of CSV: the column to predict, by name (with a header) or by its number from 1. Empty: the
  /// last one. Error(kUsage) for idx.
  std::string target;

  /// Absent: idx and a target of words are classes; one of numbers, some with a fraction, is
  /// regression; whole numbers, or words among fractions, could be either: refused with the choice.
  std::optional<Task> task;

  /// Held-out data: a path as above (a folder: its t10k files), or a share of the rows, above 0 and
  /// below 1. Not both.
  std::optional<std::string> validation_path;
  double validation_fraction = 0;
};

class RowTable;

/// Rows of one table. Copies share it. All functions may be called from several threads.
class RowData {
 public:
  RowData(std::shared_ptr<const RowTable> table, std::vector<uint64_t> rows);

  uint64_t row_count() const { return rows_.size(); }
  uint32_t input_count() const;
  Task task() const;
  uint32_t class_count() const;  // 0 for regression

  /// Index -> input_count() numbers: bytes of images / 255; of CSV (x - mean) / deviation, rounded
  /// once, with both from the training rows alone (a constant column: x - mean).
  void copy_inputs(uint64_t index, float* inputs) const;

  /// REQUIRES: classification. Below class_count().
  int64_t target_class(uint64_t index) const;
  /// REQUIRES: regression. The number of the file, not scaled.
  float target_value(uint64_t index) const;

  /// Hands over the names of the classes, and inputs (as copy_inputs() gives them) and targets of
  /// all rows in order: what a hash of the content should cover, besides the sizes above.
  void walk_bytes(const std::function<void(std::span<const uint8_t>)>& visit) const;

  /// "60000 images of 28 x 28", "150 rows of 4 numbers, with header; target 'species': 3 classes":
  /// of the whole table that these rows are from.
  const std::string& summary() const;

  /// Of the names of CSV classes, by class; of idx "0", "1", ...
  const std::vector<std::string>& class_names() const;

  /// What the table holds in memory, all of its rows.
  uint64_t memory_bytes() const;
  bool shares_memory(const RowData& other) const { return table_ == other.table_; }

 private:
  std::shared_ptr<const RowTable> table_;
  std::vector<uint64_t> rows_;  // [index] row of the table
};

struct RowSplit {
  RowData training;
  /// A table of its own, or rows drawn with a fixed key (so that another seed holds out the same
  /// ones), in the order of the file.
  std::optional<RowData> validation;
};

RowSplit load_row_data(const RowDataOptions& options);

}  // namespace lockstep::train
