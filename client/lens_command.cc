// `mk lens`

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>

#include "client/chat.h"
#include "client/commands.h"
#include "client/lens_picture.h"
#include "client/look_options.h"
#include "client/look_run.h"
#include "client/picture_file.h"
#include "client/report.h"

namespace mk::client {
namespace {

// Columns of a picture; of a longer text the last ones are shown.
constexpr size_t kMostColumns = 256;

LensPicture PictureOf(const protocol::RunDone& done, std::deque<protocol::LensChunk> columns,
                      size_t left_out, const std::string& colour) {
  LensPicture picture;
  picture.model = ModelName(done.trust.model_path);
  picture.settings = "precision " + done.options.precision;
  if (done.options.temperature > 0) {
    picture.settings += ", seed " + std::to_string(done.options.seed);
  }
  picture.left_out = left_out;
  picture.columns.assign(std::make_move_iterator(columns.begin()),
                         std::make_move_iterator(columns.end()));
  if (colour == "entropy") picture.colour = LensPicture::Colour::kEntropy;
  double largest = 1;
  for (const auto& column : picture.columns) {
    for (const auto& layer : column.layers) largest = std::max(largest, layer.entropy);
  }
  picture.largest_entropy = std::ceil(largest);
  return picture;
}

}  // namespace

int LensCommand(const Command& command, int argc, char** argv) {
  AccessOptions access;
  LookRun run(8);
  LookOptions looks;
  PictureFile file;
  std::string colour = "probability";
  CommandLine line(command);
  run.Add(line, "Text to read; - or nothing: standard input");
  looks.AddLens(line);
  file.Add(line);
  line.app()
      .add_option("--colour", colour, "What shades show: probability (default) or entropy")
      ->check(OneOf({"probability", "entropy"}))
      ->type_name("WHAT");
  line.AddAccess(access, true);
  if (auto code = line.Parse(argc, argv)) return *code;
  protocol::Status taken = file.Check();
  if (taken) taken = looks.TakeLens(run.args());
  if (taken) taken = run.Take(line);
  if (!taken) return ReportError(taken.error());

  Output output(STDOUT_FILENO);
  std::deque<protocol::LensChunk> columns;
  size_t left_out = 0;
  auto done = run.Run(access, output, true, [&](const protocol::Body& body) {
    const auto* lens = std::get_if<protocol::LensChunk>(&body);
    if (lens == nullptr) return;
    // All columns have the same rows; others are of no daemon of ours.
    if (!columns.empty() && lens->layers.size() != columns.front().layers.size()) return;
    columns.push_back(*lens);
    if (columns.size() <= kMostColumns) return;
    columns.pop_front();
    ++left_out;
  });
  if (done && columns.empty()) {
    done = protocol::Fail(protocol::ErrorCode::kInternal, "the daemon sent no rows of the lens");
  }
  if (!done) return ReportError(done.error());
  if (left_out > 0) {
    std::fputs(("mk: the picture shows the last " + std::to_string(kMostColumns) + " tokens; " +
                std::to_string(left_out) + " before them are left out\n")
                   .c_str(),
               stderr);
  }
  const LensPicture picture = PictureOf(*done, std::move(columns), left_out, colour);
  const std::string svg = Draw(picture);
  if (auto written = file.Write(svg, "Logit lens of " + picture.model, output); !written) {
    return ReportError(written.error());
  }
  output.Write(file.Told(svg));
  return FinishOutput(output, protocol::kExitDone);
}

}  // namespace mk::client
