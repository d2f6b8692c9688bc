#pragma once

#include <optional>
#include <string>

#include "src/report/product_line.h"

namespace lockstep::cli {

/// Said where the newest other run beside the folder `out` trained the same model on the same data
/// with another global batch: "global batch was 64 (in runs/a), is now 128; the learning rate did
/// not follow and stays 0.001". Nothing where the learning rate was changed too, or nothing is
/// beside it. `recipe`: of this run, as JSON.
std::optional<std::string> change_since_previous_run(const std::string& out,
                                                     const std::string& recipe,
                                                     const report::Product& product);

}  // namespace lockstep::cli
