#include "client/look_options.h"

#include <charconv>
#include <set>
#include <string_view>

#include "client/report.h"

namespace mk::client {
namespace {

using protocol::Fail;
using protocol::Status;

constexpr uint32_t kMaxLayer = 4095;
constexpr uint64_t kUsualTop = 5;

protocol::Error BadLayers(const std::string& text) {
  return UsageError("--lens-layers: \"" + text + "\" is no list of layers",
                    "numbers and ranges with commas between them: 0,4,8-12");
}

std::optional<uint32_t> ParseLayer(std::string_view text) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool good = error == std::errc() && end == text.data() + text.size();
  return good && value <= kMaxLayer ? std::optional(value) : std::nullopt;
}

}  // namespace

protocol::Result<std::vector<uint32_t>> ParseLayers(const std::string& text) {
  std::set<uint32_t> layers;
  std::string_view rest = text;
  for (bool more = true; more;) {
    const size_t comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    more = comma != std::string_view::npos;
    if (more) rest.remove_prefix(comma + 1);
    const size_t dash = part.find('-');
    const auto first = ParseLayer(part.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : ParseLayer(part.substr(dash + 1));
    if (!first || !last || *first > *last) return Fail(BadLayers(text));
    for (uint32_t layer = *first; layer <= *last; ++layer) layers.insert(layer);
  }
  return std::vector<uint32_t>(layers.begin(), layers.end());
}

void LookOptions::AddLens(CommandLine& line) {
  line.AddNumber("--lens-top", top_, "Tokens that the lens shows per layer (default 5)", 1, 100);
  line.app()
      .add_option("--lens-layers", layers_,
                  "Layers that the lens looks after: 0,4,8-12 (default: all)")
      ->type_name("LIST");
}

void LookOptions::AddAll(CommandLine& line) {
  CLI::App& app = line.app();
  app.add_flag("--logit-lens", last_,
               "Show what the model would say after every layer, at the end of the prompt");
  app.add_flag("--logit-lens-all", all_, "The same, and after every generated token");
  AddLens(line);
  app.add_flag("--hidden-stats", given_.hidden_stats,
               "Show the size of the hidden state after every layer, at the end of the prompt");
  app.add_flag("--debug-routing", given_.debug_routing,
               "Show the experts that every token of the answer goes to");
  app.add_option("--cms", given_.sketch, "Write a sketch of the experts that were picked: MKCMS001")
      ->type_name("FILE");
  app.add_option("--trace", given_.trace,
                 "Write the experts that were picked, in their order: MKTRC002")
      ->type_name("FILE");
  app.add_option("--demand-trace", given_.demands,
                 "The same as demands on a cache, in the format of the reference engine")
      ->type_name("FILE");
  app.add_option("--routes-store", given_.store,
                 "Add the experts that were picked to a store of sessions: MKRTS001")
      ->type_name("FILE");
}

Status LookOptions::TakeLens(protocol::RunArgs& args) const {
  args.lens = "all";
  args.lens_top = static_cast<uint32_t>(top_ == 0 ? kUsualTop : top_);
  if (layers_.empty()) return {};
  auto layers = ParseLayers(layers_);
  if (!layers) return Fail(std::move(layers.error()));
  args.lens_layers = std::move(*layers);
  return {};
}

Status LookOptions::Take(protocol::RunArgs& args, LookSettings& settings) const {
  settings = given_;
  settings.lens = last_ || all_;
  if (!settings.lens && (top_ != 0 || !layers_.empty())) {
    return Fail(UsageError("--lens-top and --lens-layers go with a lens",
                           "add --logit-lens or --logit-lens-all"));
  }
  if (settings.lens) {
    if (Status taken = TakeLens(args); !taken) return taken;
    args.lens = all_ ? "answer" : "last";
  }
  args.want_hidden_stats = settings.hidden_stats;
  args.want_routes = args.want_routes || settings.need_routes();
  args.want_experts = settings.has_files();
  return {};
}

}  // namespace mk::client
