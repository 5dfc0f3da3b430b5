// Where a picture goes: an SVG file, an HTML page that holds one and nothing from elsewhere, or
// standard output.

#pragma once

#include <string>

#include "client/command_line.h"
#include "client/output.h"
#include "protocol/error.h"

namespace mk::client {

class PictureFile {
 public:
  // -o,--out
  void Add(CommandLine& line);
  // Errors: usage, for a name that ends in neither .svg nor .html; no file at all.
  protocol::Status Check() const;
  // `svg`: as of Svg::Take(). "-" goes to `output`.
  protocol::Status Write(const std::string& svg, const std::string& title, Output& output) const;
  // "wrote lens.svg: 48 KiB"; empty for standard output.
  std::string Told(const std::string& svg) const;

 private:
  std::string path_;
};

}  // namespace mk::client
