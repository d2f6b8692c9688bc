#pragma once

#include <string>
#include <string_view>

namespace lockstep::base {

/// A path for messages: in single quotes, with control characters and bytes that are not UTF-8 as
/// \xNN, so that a message is always one line of valid UTF-8.
std::string quote_path(std::string_view path);

}  // namespace lockstep::base
