// The text of `mk top`.

#pragma once

#include <string>
#include <vector>

#include "client/top_view.h"

namespace mk::client {

struct TopStyle {
  size_t columns = 0;  // 0: lines as long as they are
  size_t rows = 0;     // 0: all of them
  bool color = false;
  std::string clock;  // shown beside the daemon's name; may be empty
};

// Lines without newlines. With limits, long lines and lists are cut and say so. Whatever names
// clients and files have, the only control sequences in the lines are those of the colours.
std::vector<std::string> TopText(const TopView& view, const TopStyle& style);

// While there is no daemon: what is waited for, and why.
std::vector<std::string> TopWaitingText(const protocol::Error& trouble, const std::string& socket,
                                        const TopStyle& style);

}  // namespace mk::client
