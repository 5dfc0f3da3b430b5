#include "eval/task_score.h"

#include <algorithm>

namespace mk::eval {
namespace {

std::string_view WithoutSpace(std::string_view text) {
  constexpr const char* kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) + 1 - first);
}

size_t BestOf(const std::vector<double>& scores) {
  return static_cast<size_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
}

}  // namespace

size_t Characters(std::string_view utf8) {
  return static_cast<size_t>(std::count_if(utf8.begin(), utf8.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

Outcome Judge(const Probe& probe, std::span<const Likelihood> likelihoods) {
  Outcome outcome;
  if (probe.rule == Rule::kGreedy) {
    outcome.right = likelihoods.front().greedy;
    return outcome;
  }
  std::vector<double> raw;
  std::vector<double> norm;
  for (size_t i = 0; i < likelihoods.size(); ++i) {
    raw.push_back(likelihoods[i].logprob);
    norm.push_back(raw.back() / static_cast<double>(Characters(probe.choices[i])));
  }
  outcome.raw = BestOf(raw) == probe.answer;
  outcome.norm = BestOf(norm) == probe.answer;
  std::vector<double>& ruled = probe.rule == Rule::kChoice ? raw : norm;
  outcome.pick = static_cast<int32_t>(BestOf(ruled));
  outcome.right = probe.rule == Rule::kChoice ? outcome.raw : outcome.norm;
  const double right = ruled[probe.answer];
  ruled.erase(ruled.begin() + static_cast<ptrdiff_t>(probe.answer));
  outcome.margin = right - ruled[BestOf(ruled)];
  return outcome;
}

Outcome JudgeText(const Probe& probe, std::string_view generated) {
  for (const std::string& stop : probe.until) {
    generated = generated.substr(0, generated.find(stop));
  }
  generated = WithoutSpace(generated);
  Outcome outcome;
  outcome.right =
      std::any_of(probe.answers.begin(), probe.answers.end(),
                  [&](const std::string& answer) { return WithoutSpace(answer) == generated; });
  return outcome;
}

}  // namespace mk::eval
