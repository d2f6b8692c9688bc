#include "src/train/row_data.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "lockstep/error.h"
#include "src/base/check.h"
#include "src/base/counted.h"
#include "src/base/file.h"
#include "src/base/random.h"
#include "src/train/csv_table.h"
#include "src/train/gzip.h"
#include "src/train/idx_file.h"
#include "src/train/token_file.h"

namespace lockstep::train {

/// The rows of all files, ready to be trained on.
class RowTable {
 public:
  uint64_t row_count = 0;
  uint32_t input_count = 0;
  Task task = Task::kClassification;
  std::vector<std::string> class_names;
  std::string summary;

  std::string images;               // idx: the file's bytes
  uint64_t images_offset = 0;       // of the first row in them
  std::vector<float> inputs;        // CSV: [row * input_count + i], standardised
  std::vector<int32_t> classes;     // [row]
  std::vector<float> values;        // [row], regression
  std::array<float, 256> shades{};  // idx: of a byte
};

namespace {

using base::counted;
using base::quote_path;

constexpr uint64_t kHeldOutKey = 0x6865'6c64'6f75'74;  // fixed: every seed holds out the same rows
constexpr size_t kMostClasses = 65'536;

[[noreturn]] void refuse(const std::string& path, const std::string& problem) {
  throw Error(ErrorCode::kInput,
              fmt::format("cannot read data from {}: {}", quote_path(path), problem));
}

// -- Files ----------------------------------------------------------------------------------------

struct LoadedFile {
  std::string path;
  std::string bytes;  // unpacked
  bool is_idx() const { return looks_like_idx(bytes); }
};

base::FileKind kind_of(const std::string& path) {
  const auto status = base::file_status(path);
  if (!status && path == "-") {
    refuse(path,
           "standard input is read by one process only, and every replica reads the data by "
           "itself. Save them to a file first.");
  }
  if (!status) refuse(path, "there is no such file or folder. Check the path.");
  if (status->kind == base::FileKind::kFolder) return status->kind;
  if (status->kind != base::FileKind::kRegular) {
    refuse(path, fmt::format("it is {}. Give an idx file, a folder with MNIST's files or CSV.",
                             base::describe(status->kind)));
  }
  return status->kind;
}

LoadedFile load_file(const std::string& path) {
  if (base::require_regular_file(path).size_bytes == 0) {
    refuse(path, "the file is empty (0 bytes).");
  }
  if (path.ends_with(".bin")) {
    refuse(path, ".bin token files belong to --model gpt; --model mlp reads idx files and CSV.");
  }
  LoadedFile file{path, read_unpacked(path)};
  if (file.is_idx()) return file;
  const std::span head(reinterpret_cast<const uint8_t*>(file.bytes.data()),
                       std::min<size_t>(file.bytes.size(), kTokenHeaderBytes));
  if (const auto format = known_binary_format(head)) {
    refuse(path, fmt::format("it is {}; expected an idx file or CSV. Convert it.", *format));
  }
  return file;
}

bool is_there(const std::string& path) {
  const auto status = base::file_status(path);
  return status && status->kind == base::FileKind::kRegular;
}

enum class Part { kTraining, kHeldOut };

// MNIST's images in a folder, under any of their usual names.
std::string images_in_folder(const std::string& folder, Part part) {
  const std::string start = folder + (part == Part::kTraining ? "/train" : "/t10k");
  for (const char* name : {"-images-idx3-ubyte", "-images.idx3-ubyte"}) {
    for (const char* ending : {"", ".gz"}) {
      std::string path = start + name + ending;
      if (is_there(path)) return path;
    }
  }
  if (part == Part::kHeldOut) {
    refuse(folder,
           "as held-out data a folder must hold t10k-images-idx3-ubyte, plain or .gz, as MNIST has "
           "it.");
  }
  refuse(
      folder,
      "the folder holds no train-images-idx3-ubyte, plain or .gz, as MNIST has it. CSV files are "
      "named one by one.");
}

std::string labels_of(const std::string& images) {
  const std::vector<std::string> paths = label_paths_of(images);
  for (const std::string& path : paths) {
    if (is_there(path)) return path;
  }
  if (paths.empty()) {
    refuse(images,
           "it holds images; which file holds their labels? Name both files: --data IMAGES "
           "LABELS.");
  }
  refuse(images, fmt::format("its labels are missing: there is neither {} nor {}. Name both files: "
                             "--data IMAGES LABELS.",
                             quote_path(paths[0]), quote_path(paths[1])));
}

// What the paths name, of one kind: one or two idx files, or CSV files.
std::vector<LoadedFile> load_files(const std::vector<std::string>& paths,
                                   Part part = Part::kTraining) {
  if (paths.empty()) throw Error(ErrorCode::kUsage, "no data was named: give --data.");
  std::vector<LoadedFile> files;
  for (const std::string& path : paths) {
    const bool is_folder = kind_of(path) == base::FileKind::kFolder;
    files.push_back(load_file(is_folder ? images_in_folder(path, part) : path));
    if (files.back().is_idx() != files.front().is_idx()) {
      refuse(path, fmt::format("it is {}, {} is {}: they cannot be joined.",
                               files.back().is_idx() ? "an idx file" : "CSV",
                               quote_path(files.front().path),
                               files.front().is_idx() ? "an idx file" : "CSV"));
    }
  }
  return files;
}

// -- idx ------------------------------------------------------------------------------------------

void check_dimensions(const LoadedFile& file, const IdxLayout& layout, bool wants_images) {
  const size_t dimensions = layout.sizes.size();
  if (wants_images == (dimensions > 1)) return;
  refuse(file.path,
         fmt::format("it has {}, so it holds {}; expected {}. --data takes the images, or images "
                     "and labels.",
                     counted(dimensions, "dimension"), wants_images ? "labels" : "images",
                     wants_images ? "images" : "labels"));
}

RowTable idx_table(std::vector<LoadedFile> files, const RowDataOptions& options) {
  if (!options.target.empty()) {
    throw Error(ErrorCode::kUsage,
                "--target names a column of CSV; idx files have labels instead.");
  }
  if (options.task == Task::kRegression) {
    throw Error(ErrorCode::kUsage, "--task regression: the labels of idx files are classes.");
  }
  if (files.size() > 2) {
    refuse(files[2].path, "one idx file of images and one of labels are read, not more.");
  }
  if (files.size() == 1) {
    check_dimensions(files[0], parse_idx(files[0].bytes, files[0].path), true);
    files.push_back(load_file(labels_of(files[0].path)));
  } else if (parse_idx(files[0].bytes, files[0].path).sizes.size() == 1) {
    std::swap(files[0], files[1]);
  }
  const IdxLayout images = parse_idx(files[0].bytes, files[0].path);
  const IdxLayout labels = parse_idx(files[1].bytes, files[1].path);
  check_dimensions(files[0], images, true);
  check_dimensions(files[1], labels, false);
  if (images.item_count() != labels.item_count()) {
    refuse(files[0].path,
           fmt::format("{} images, but {} labels in {}: they do not belong together.",
                       images.item_count(), labels.item_count(), quote_path(files[1].path)));
  }
  if (images.item_size() > (1u << 30)) {
    refuse(files[0].path, fmt::format("an image of {} numbers is too large for a linear layer.",
                                      images.item_size()));
  }
  RowTable table;
  table.row_count = images.item_count();
  table.input_count = static_cast<uint32_t>(images.item_size());
  table.images_offset = images.offset_bytes;
  for (const char label : files[1].bytes.substr(labels.offset_bytes)) {
    table.classes.push_back(static_cast<uint8_t>(label));
  }
  const std::vector<uint32_t> sides(images.sizes.begin() + 1, images.sizes.end());
  table.summary =
      fmt::format("{} of {}", counted(table.row_count, "image"), fmt::join(sides, " x "));
  table.images = std::move(files[0].bytes);
  for (size_t byte = 0; byte < table.shades.size(); ++byte) {
    table.shades[byte] = static_cast<float>(static_cast<double>(byte) / 255);
  }
  return table;
}

void name_idx_classes(RowTable& table) {
  const int32_t most = *std::max_element(table.classes.begin(), table.classes.end());
  for (int32_t i = 0; i <= most; ++i) table.class_names.push_back(std::to_string(i));
}

// -- CSV ------------------------------------------------------------------------------------------

CsvTable csv_table(const std::vector<LoadedFile>& files, const std::string& target) {
  CsvTable csv;
  for (const LoadedFile& file : files) add_csv(csv, file.bytes, file.path, target);
  return csv;
}

bool all_whole(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [](double value) {
    return value == std::floor(value) && std::fabs(value) <= 9.007199254740992e15;
  });
}

// A slip in one of many numbers would else make a class of each of them.
void refuse_words_among_fractions(const CsvTable& csv, size_t word) {
  for (const std::string& text : csv.targets) {
    const auto number = csv_number(text);
    if (!number || *number == std::floor(*number)) continue;
    throw Error(
        ErrorCode::kInput,
        fmt::format("cannot read {}: {} is no number, but {} elsewhere in this column is. "
                    "Mend the cell, or say --task classification.",
                    csv.target_place(word), quote_path(csv.targets[word].substr(0, 60)), text));
  }
}

// Classification where a target is a word, regression where one has a fraction; else as asked.
Task task_of(const CsvTable& csv, const std::optional<std::vector<double>>& numbers,
             const std::optional<Task>& asked) {
  if (!numbers) {
    if (asked == Task::kClassification) return Task::kClassification;
    size_t row = 0;
    while (csv_number(csv.targets[row])) ++row;
    if (!asked) {
      refuse_words_among_fractions(csv, row);
      return Task::kClassification;
    }
    throw Error(ErrorCode::kUsage,
                fmt::format("--task regression: {} holds {}, which is no number.",
                            csv.target_place(row), quote_path(csv.targets[row].substr(0, 60))));
  }
  if (!all_whole(*numbers)) {
    if (asked != Task::kClassification) return Task::kRegression;
    size_t row = 0;
    while (all_whole({(*numbers)[row]})) ++row;
    throw Error(
        ErrorCode::kUsage,
        fmt::format("--task classification: {} holds {}; classes are words or whole numbers.",
                    csv.target_place(row), csv.targets[row]));
  }
  if (asked) return *asked;
  const auto [least, most] = std::minmax_element(numbers->begin(), numbers->end());
  throw Error(
      ErrorCode::kUsage,
      fmt::format("{} of {} holds whole numbers from {} to {}: say --task classification or "
                  "--task regression.",
                  csv.column_name(csv.target), quote_path(csv.paths.front()), *least, *most));
}

// One text for one class: whole numbers however they were written.
std::vector<std::string> class_texts(const CsvTable& csv,
                                     const std::optional<std::vector<double>>& numbers) {
  if (!numbers) return csv.targets;
  std::vector<std::string> texts;
  for (const double number : *numbers) texts.push_back(fmt::format("{:.0f}", number + 0.0));
  return texts;
}

std::vector<std::string> sorted_names(std::vector<std::string> texts, bool are_numbers) {
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  if (are_numbers) {
    std::sort(texts.begin(), texts.end(), [](const std::string& left, const std::string& right) {
      return *csv_number(left) < *csv_number(right);
    });
  }
  return texts;
}

RowTable csv_rows(const CsvTable& csv) {
  RowTable table;
  table.row_count = csv.row_count();
  table.input_count = static_cast<uint32_t>(csv.input_count());
  return table;
}

void set_classes(RowTable& table, const CsvTable& csv, const std::vector<std::string>& texts,
                 const std::vector<std::string>& names) {
  std::map<std::string_view, int32_t> number_of;
  for (size_t i = 0; i < names.size(); ++i) number_of[names[i]] = static_cast<int32_t>(i);
  for (size_t row = 0; row < texts.size(); ++row) {
    const auto found = number_of.find(texts[row]);
    if (found == number_of.end()) {
      throw Error(ErrorCode::kInput,
                  fmt::format("cannot read {}: the class {} does not occur in the training data.",
                              csv.target_place(row), quote_path(texts[row].substr(0, 60))));
    }
    table.classes.push_back(found->second);
  }
  table.class_names = names;
}

void set_values(RowTable& table, const std::vector<double>& numbers) {
  for (const double number : numbers) table.values.push_back(static_cast<float>(number));
}

// Mean and deviation of every input over some rows, in double.
struct Statistics {
  std::vector<double> mean, deviation;  // [input]
};

Statistics statistics_of(const CsvTable& csv, const std::vector<uint64_t>& rows) {
  const size_t inputs = csv.input_count();
  const auto count = static_cast<double>(rows.size());
  Statistics statistics{std::vector<double>(inputs), std::vector<double>(inputs)};
  for (const uint64_t row : rows) {
    for (size_t i = 0; i < inputs; ++i) statistics.mean[i] += csv.inputs[row * inputs + i];
  }
  for (double& mean : statistics.mean) mean /= count;
  for (const uint64_t row : rows) {
    for (size_t i = 0; i < inputs; ++i) {
      const double difference = csv.inputs[row * inputs + i] - statistics.mean[i];
      statistics.deviation[i] += difference * difference;
    }
  }
  for (size_t i = 0; i < inputs; ++i) {
    // The mean of equal numbers may be another in the last bit: a constant column is told by them.
    const double first = csv.inputs[rows.front() * inputs + i];
    const bool is_constant = std::all_of(rows.begin(), rows.end(), [&](uint64_t row) {
      return csv.inputs[row * inputs + i] == first;
    });
    if (is_constant) statistics.mean[i] = first;
    double& deviation = statistics.deviation[i];
    deviation = is_constant ? 1 : std::sqrt(deviation / count);
  }
  return statistics;
}

void standardise(RowTable& table, const CsvTable& csv, const Statistics& statistics) {
  const size_t inputs = csv.input_count();
  table.inputs.reserve(csv.inputs.size());
  for (size_t at = 0; at < csv.inputs.size(); ++at) {
    const size_t i = at % inputs;
    table.inputs.push_back(
        static_cast<float>((csv.inputs[at] - statistics.mean[i]) / statistics.deviation[i]));
  }
}

std::string csv_summary(const CsvTable& csv, const RowTable& table) {
  const std::string files =
      csv.paths.size() == 1 ? "" : fmt::format("{} files, ", csv.paths.size());
  const std::string target = csv.names[csv.target].empty()
                                 ? fmt::format("column {}", csv.target + 1)
                                 : quote_path(csv.names[csv.target]);
  const std::string classes = table.task == Task::kClassification
                                  ? fmt::format("{} classes", table.class_names.size())
                                  : "a number";
  return fmt::format("{}{} of {}, {}; target {}: {}", files, counted(table.row_count, "row"),
                     counted(table.input_count, "number"),
                     csv.has_header() ? "with header" : "no header", target, classes);
}

// -- Splits ---------------------------------------------------------------------------------------

std::vector<uint64_t> all_rows(uint64_t count) {
  std::vector<uint64_t> rows(count);
  for (uint64_t row = 0; row < count; ++row) rows[row] = row;
  return rows;
}

struct RowNumbers {
  std::vector<uint64_t> training, held_out;
};

RowNumbers hold_out(uint64_t count, double share) {
  const auto wanted = static_cast<uint64_t>(std::llround(share * static_cast<double>(count)));
  if (share > 0 && (wanted == 0 || wanted == count)) {
    throw Error(ErrorCode::kInput,
                fmt::format("--validation {}: of {} that is {}; at least one row must be held out "
                            "and one be left.",
                            share, counted(count, "row"), wanted));
  }
  RowNumbers numbers;
  for (uint64_t row = 0; row < count; ++row) {
    const bool is_held_out = base::permute_index(kHeldOutKey, count, row) < wanted;
    (is_held_out ? numbers.held_out : numbers.training).push_back(row);
  }
  return numbers;
}

RowSplit split_of(RowTable table, const RowNumbers& numbers) {
  const auto shared = std::make_shared<const RowTable>(std::move(table));
  RowSplit split{RowData(shared, numbers.training), std::nullopt};
  if (!numbers.held_out.empty()) split.validation = RowData(shared, numbers.held_out);
  return split;
}

RowSplit load_idx(std::vector<LoadedFile> files, const RowDataOptions& options) {
  RowTable table = idx_table(std::move(files), options);
  name_idx_classes(table);
  const size_t classes = table.class_names.size();
  const uint32_t inputs = table.input_count;
  const RowNumbers rows = hold_out(table.row_count, options.validation_fraction);
  RowSplit split = split_of(std::move(table), rows);
  if (!options.validation_path) return split;
  std::vector<LoadedFile> held_out = load_files({*options.validation_path}, Part::kHeldOut);
  const std::string path = held_out.front().path;
  if (!held_out.front().is_idx()) refuse(path, "the training data are idx files, this is CSV.");
  RowTable other = idx_table(std::move(held_out), options);
  if (other.input_count != inputs) {
    refuse(path, fmt::format("its images have {} numbers, those to train on {}.", other.input_count,
                             inputs));
  }
  const int32_t most = *std::max_element(other.classes.begin(), other.classes.end());
  if (static_cast<size_t>(most) >= classes) {
    refuse(path, fmt::format("the label {} does not occur in the training data, whose labels go "
                             "from 0 to {}.",
                             most, classes - 1));
  }
  other.class_names = split.training.class_names();
  const uint64_t count = other.row_count;
  split.validation = RowData(std::make_shared<const RowTable>(std::move(other)), all_rows(count));
  return split;
}

RowSplit load_csv(const std::vector<LoadedFile>& files, const RowDataOptions& options) {
  const CsvTable csv = csv_table(files, options.target);
  const auto numbers = numeric_targets(csv);
  RowTable table = csv_rows(csv);
  table.task = task_of(csv, numbers, options.task);
  const bool has_classes = table.task == Task::kClassification;
  if (has_classes) {
    const auto texts = class_texts(csv, numbers);
    const auto names = sorted_names(texts, numbers.has_value());
    if (names.size() > kMostClasses) {
      refuse(csv.paths.front(),
             fmt::format("{} has {} different classes, more than {}. Is it the "
                         "right --target?",
                         csv.column_name(csv.target), names.size(), kMostClasses));
    }
    set_classes(table, csv, texts, names);
  } else {
    set_values(table, *numbers);
  }
  const RowNumbers rows = hold_out(csv.row_count(), options.validation_fraction);
  const Statistics statistics = statistics_of(csv, rows.training);
  standardise(table, csv, statistics);
  table.summary = csv_summary(csv, table);
  RowSplit split = split_of(std::move(table), rows);
  if (!options.validation_path) return split;

  const std::vector<LoadedFile> held_out = load_files({*options.validation_path}, Part::kHeldOut);
  const std::string& path = held_out.front().path;
  if (held_out.front().is_idx()) refuse(path, "the training data are CSV, this is an idx file.");
  CsvTable other = csv_table(held_out, options.target);
  if (other.names != csv.names || other.target != csv.target) {
    refuse(path, fmt::format("its columns are not those of {} ({} and {} of them): number, header "
                             "and target must be the same.",
                             quote_path(csv.paths.front()), other.names.size(), csv.names.size()));
  }
  const auto other_numbers = numeric_targets(other);
  RowTable other_table = csv_rows(other);
  other_table.task = split.training.task();
  if (has_classes) {
    // As the training data's were read: numbers as numbers, words as words.
    const auto& texts = numbers ? class_texts(other, other_numbers) : other.targets;
    set_classes(other_table, other, texts, split.training.class_names());
  } else {
    static_cast<void>(task_of(other, other_numbers, Task::kRegression));  // refuses words
    set_values(other_table, *other_numbers);
  }
  standardise(other_table, other, statistics);
  const uint64_t count = other_table.row_count;
  split.validation =
      RowData(std::make_shared<const RowTable>(std::move(other_table)), all_rows(count));
  return split;
}

}  // namespace

RowData::RowData(std::shared_ptr<const RowTable> table, std::vector<uint64_t> rows)
    : table_(std::move(table)), rows_(std::move(rows)) {}

uint32_t RowData::input_count() const { return table_->input_count; }
Task RowData::task() const { return table_->task; }
uint32_t RowData::class_count() const { return static_cast<uint32_t>(table_->class_names.size()); }
const std::string& RowData::summary() const { return table_->summary; }
const std::vector<std::string>& RowData::class_names() const { return table_->class_names; }

void RowData::copy_inputs(uint64_t index, float* inputs) const {
  LOCKSTEP_CHECK(index < rows_.size(), index, rows_.size());
  const uint64_t start = rows_[index] * table_->input_count;
  if (table_->images.empty()) {
    std::copy_n(table_->inputs.data() + start, table_->input_count, inputs);
    return;
  }
  const char* bytes = table_->images.data() + table_->images_offset + start;
  for (uint32_t i = 0; i < table_->input_count; ++i) {
    inputs[i] = table_->shades[static_cast<uint8_t>(bytes[i])];
  }
}

int64_t RowData::target_class(uint64_t index) const {
  LOCKSTEP_CHECK(index < rows_.size(), index, rows_.size());
  return table_->classes[rows_[index]];
}

float RowData::target_value(uint64_t index) const {
  LOCKSTEP_CHECK(index < rows_.size(), index, rows_.size());
  return table_->values[rows_[index]];
}

void RowData::walk_bytes(const std::function<void(std::span<const uint8_t>)>& visit) const {
  const auto hand_over = [&](const void* data, size_t size_bytes) {
    visit({static_cast<const uint8_t*>(data), size_bytes});
  };
  for (const std::string& name : table_->class_names) {
    hand_over(name.c_str(), name.size() + 1);
  }
  std::vector<float> inputs(table_->input_count);
  for (uint64_t index = 0; index < rows_.size(); ++index) {
    copy_inputs(index, inputs.data());
    hand_over(inputs.data(), inputs.size() * sizeof(float));
    if (task() == Task::kClassification) {
      hand_over(&table_->classes[rows_[index]], sizeof(int32_t));
    } else {
      hand_over(&table_->values[rows_[index]], sizeof(float));
    }
  }
}

uint64_t RowData::memory_bytes() const {
  return table_->images.size() + sizeof(float) * (table_->inputs.size() + table_->values.size()) +
         sizeof(int32_t) * table_->classes.size();
}

RowSplit load_row_data(const RowDataOptions& options) {
  LOCKSTEP_CHECK(!options.validation_path || options.validation_fraction == 0,
                 options.validation_fraction, 0);
  std::vector<LoadedFile> files = load_files(options.paths);
  const bool is_idx = files.front().is_idx();
  return is_idx ? load_idx(std::move(files), options) : load_csv(files, options);
}

}  // namespace lockstep::train
