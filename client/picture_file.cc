#include "client/picture_file.h"

#include "client/atomic_write.h"
#include "client/printable.h"
#include "client/progress.h"
#include "client/report.h"
#include "client/svg.h"

namespace mk::client {
namespace {

bool IsPage(const std::string& path) {
  return path.ends_with(".html") || path.ends_with(".htm");
}

std::string PageOf(const std::string& svg, const std::string& title) {
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<title>" +
         XmlText(title) +
         "</title>\n<style>body{margin:24px;background:#ffffff}figure{margin:0;overflow-x:auto}"
         "</style>\n</head>\n<body>\n<figure>\n" +
         svg + "</figure>\n</body>\n</html>\n";
}

}  // namespace

void PictureFile::Add(CommandLine& line) {
  line.app()
      .add_option("-o,--out", path_, "The picture: a .svg or .html file, or - for SVG on stdout")
      ->type_name("FILE");
}

protocol::Status PictureFile::Check() const {
  if (path_.empty()) {
    return protocol::Fail(UsageError("there is no picture to make", "name it with -o FILE.svg"));
  }
  if (path_ == "-") return {};
  if (path_.ends_with(".svg") || IsPage(path_)) return CheckWritable(path_);
  return protocol::Fail(UsageError("-o " + path_ + ": pictures are .svg or .html files",
                                   "end the name in .svg or .html, or give - for stdout"));
}

protocol::Status PictureFile::Write(const std::string& svg, const std::string& title,
                                    Output& output) const {
  if (path_ == "-") {
    output.Write(svg);
    return {};
  }
  return WriteFileAtomically(path_, IsPage(path_) ? PageOf(svg, title) : svg);
}

std::string PictureFile::Told(const std::string& svg) const {
  return path_ == "-" ? "" : "wrote " + Printable(path_) + ": " + BytesText(svg.size()) + "\n";
}

}  // namespace mk::client
