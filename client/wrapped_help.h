// Help that fits a terminal.

#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace mk::client {

// Lines of over `columns` broken between words; what follows stands below the first word of the
// text that is beside a name. Examples are left as they are: people copy them. 0: no limit.
std::string WrapHelp(std::string_view help, size_t columns);

// The same for standard output: as wide as its terminal, without a limit where it is none.
std::string HelpForOutput(std::string_view help);

}  // namespace mk::client
