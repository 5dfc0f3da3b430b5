#include "client/look_text.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>
#include <vector>

#include "client/printable.h"
#include "client/text_table.h"

namespace mk::client {
namespace {

using Align = TextTable::Align;

template <typename... Values>
std::string Format(const char* format, Values... values) {
  std::array<char, 96> text;
  std::snprintf(text.data(), text.size(), format, values...);
  return text.data();
}

std::string LayerName(uint32_t layer) {
  return "L" + std::to_string(layer);
}

// "E17(0.52) E3(0.21) E40(0.20)": the three of largest weight; equal weights as they were picked.
std::string ThreeLargest(const protocol::RouterPick& pick) {
  const size_t count = std::min(pick.experts.size(), pick.weights.size());
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return pick.weights[a] > pick.weights[b]; });
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(3, count); ++i) {
    text +=
        " E" + std::to_string(pick.experts[order[i]]) + Format("(%.2f)", pick.weights[order[i]]);
  }
  return text;
}

std::string RoutingLine(const std::string& token, const protocol::RoutesChunk& routes) {
  std::string line = Fitted(token, 14) + "  ";
  bool first = true;
  for (const protocol::RouterPick& pick : routes.layers) {
    line += (first ? "" : " | ") + LayerName(pick.layer) + ":" + ThreeLargest(pick);
    first = false;
  }
  return line + "\n";
}

}  // namespace

std::string Quoted(std::string_view token) {
  std::string inner;
  for (const char c : token) {
    if (c == '\\' || c == '\'') inner += '\\';
    inner += c;
  }
  return "'" + Printable(inner) + "'";
}

std::string QuotedOr(std::string_view token, int32_t id) {
  return token.empty() ? "#" + std::to_string(id) : Quoted(token);
}

std::string PercentText(double share) {
  const double percent = 100 * share;
  if (percent > 0 && percent < 0.01) return "<0.01 %";
  return Format(percent < 1 ? "%.2f %%" : "%.1f %%", percent);
}

std::string LensText(const protocol::LensChunk& lens) {
  std::string text = "logit lens, ";
  text += lens.index ? "generated token " + std::to_string(*lens.index + 1)
                     : "position " + std::to_string(lens.position) + " of the prompt";
  text += ", after " + QuotedOr(lens.text, lens.id);
  if (lens.next) text += "; next " + QuotedOr(lens.next_text, *lens.next);
  TextTable table{Align::kRight, Align::kLeft, Align::kRight, Align::kRight, Align::kLeft};
  table.Add({"", "", lens.next ? "rank" : "", lens.next ? "next" : "", "likeliest"});
  for (const protocol::LensLayer& layer : lens.layers) {
    std::string likeliest;
    for (size_t i = 0; i < std::min(layer.ids.size(), layer.probabilities.size()); ++i) {
      const std::string token = i < layer.texts.size() ? layer.texts[i] : std::string();
      likeliest += (i > 0 ? "  " : "") + QuotedOr(token, layer.ids[i]) + " " +
                   Format("%.1f%%", 100 * layer.probabilities[i]);
    }
    table.Add({std::to_string(layer.layer), layer.kind,
               layer.rank ? std::to_string(*layer.rank + 1) : "",
               layer.probability ? PercentText(*layer.probability) : "", likeliest});
  }
  return text + "\n" + table.Text("  ");
}

std::string HiddenStatsText(const protocol::HiddenStatsChunk& stats) {
  std::string text =
      "hidden state, after the token at position " + std::to_string(stats.position) + "\n";
  TextTable table{Align::kRight, Align::kLeft, Align::kRight};
  table.Add({"", "", "rms"});
  for (const protocol::LayerRms& layer : stats.layers) {
    table.Add({std::to_string(layer.layer), layer.kind, Format("%.4f", layer.rms)});
  }
  return text + table.Text("  ") +
         Format("  before the final norm: rms %.4f; logits: mean %.4f, deviation %.4f\n",
                stats.output_rms, stats.logits_mean, stats.logits_std);
}

std::string RoutingText::Take(const protocol::TokenChunk& token) {
  // What was read before the first token is the prompt, whose end it follows.
  if (!generating_ && last_read_) first_ = *last_read_ + 1;
  generating_ = true;
  tokens_.emplace_back(token.index, QuotedOr(token.text, token.id));
  return Ready();
}

std::string RoutingText::Take(const protocol::RoutesChunk& routes) {
  for (const protocol::RouterPick& pick : routes.layers) {
    for (const int32_t expert : pick.experts) ++counts_[{pick.layer, expert}];
  }
  last_read_ = routes.position;
  if (!generating_) return {};
  if (!first_) first_ = routes.position;
  routes_.push_back(routes);
  return Ready();
}

std::string RoutingText::Ready() {
  std::string lines;
  while (!tokens_.empty() && !routes_.empty()) {
    const uint64_t token_at = *first_ + tokens_.front().first;
    const uint64_t routes_at = routes_.front().position;
    if (token_at == routes_at) lines += RoutingLine(tokens_.front().second, routes_.front());
    if (token_at <= routes_at) tokens_.pop_front();
    if (routes_at <= token_at) routes_.pop_front();
  }
  return lines;
}

std::string RoutingText::MostUsed() const {
  std::vector<std::pair<std::pair<uint32_t, int32_t>, uint64_t>> all(counts_.begin(),
                                                                     counts_.end());
  // The map has them by layer, then expert.
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  if (all.size() > 10) all.resize(10);
  std::string text = "most used:";
  for (const auto& [pair, count] : all) {
    text += " " + LayerName(pair.first) + "/E" + std::to_string(pair.second) + " " +
            std::to_string(count);
    if (&pair != &all.back().first) text += ",";
  }
  return all.empty() ? "" : text + "\n";
}

}  // namespace mk::client
