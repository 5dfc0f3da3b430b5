#include "client/logprob_text.h"

#include <array>
#include <cmath>
#include <cstdio>

#include "client/look_text.h"

namespace mk::client {
namespace {

constexpr size_t kTextColumns = 20;
constexpr size_t kNumberColumns = 8;

std::string NatsText(double logprob) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.3f", logprob);
  return text.data();
}

}  // namespace

std::string LogprobPercent(double logprob) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.1f %%", 100.0 * std::exp(logprob));
  return text.data();
}

std::string LogprobLine(const protocol::TokenChunk& token, const Painter& paint) {
  TableRow row(paint, 0);
  const double logprob = token.logprob.value_or(0);
  row.Left(QuotedOr(token.text, token.id), kTextColumns);
  row.Right(LogprobPercent(logprob), kNumberColumns);
  row.Right(NatsText(logprob), kNumberColumns);
  std::string line = row.Take();
  const char* separator = "   ";
  if (token.top) {
    for (const protocol::Alternative& one : *token.top) {
      const std::string text = QuotedOr(one.text, one.id) + " " + LogprobPercent(one.logprob);
      line += separator + paint(one.id == token.id ? Color::kBold : Color::kNone, text);
      separator = ", ";
    }
  }
  return line + "\n";
}

Json LogprobJson(const protocol::TokenChunk& token) {
  Json json = ToJson(token);
  json.erase("index");
  json.erase("channel");
  return json;
}

}  // namespace mk::client
