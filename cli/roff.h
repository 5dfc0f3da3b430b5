// Pieces of a manual page in roff, with the man macros.

#pragma once

#include <string>

#include "cli/option_info.h"

namespace mk::cli {

// Text that roff shows as it is: a hyphen that can be copied, no escapes, no requests.
std::string Roff(const std::string& text);
// The same in another face.
std::string Bold(const std::string& text);
std::string Italic(const std::string& text);

// Below, `title`, `tag` and `text` are roff already.
std::string Section(const std::string& title);
// An indented paragraph with its tag.
std::string Tagged(const std::string& tag, const std::string& text);
// "-n, --max-new N", each part in its face.
std::string OptionTag(const OptionInfo& option);

}  // namespace mk::cli
