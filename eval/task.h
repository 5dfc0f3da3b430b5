// Tasks: questions with answers, one JSON object per line.
//
//   {"prompt": "The capital of France is", "choices": ["Rome", "Paris"], "answer": 1}
//   {"prompts": ["2 + 2 =", "Q: 2 + 2? A:"], "answer": "4"}
//
// docs/evaluation.md describes every field. Files are checked before they are believed.
// Thread-safe.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/error.h"

namespace mk::eval {

inline constexpr size_t kMaxProbes = 100'000;
inline constexpr size_t kMaxPrompts = 16;  // of a probe
inline constexpr size_t kMaxChoices = 64;
inline constexpr uint32_t kMaxNew = 1024;

enum class Rule {
  kChoice,      // the choice of the largest log-likelihood
  kChoiceNorm,  // of the largest log-likelihood per character
  kGreedy,      // every token of the answer is the likeliest in its place
  kGenerate,    // what is generated greedily, up to `until`, is one of the answers
};
std::string_view NameOf(Rule rule);  // "choice", "choice_norm", "greedy", "generate"
inline bool HasChoices(Rule rule) {
  return rule == Rule::kChoice || rule == Rule::kChoiceNorm;
}

struct Probe {
  std::string id;
  std::string category;              // ""
  std::vector<std::string> prompts;  // the same question, put differently; at least one
  Rule rule = Rule::kChoiceNorm;
  std::vector<std::string> choices;  // two or more, of rules that choose
  size_t answer = 0;                 // the right one of them
  std::vector<std::string> answers;  // of the other rules; at least one
  std::string delimiter = " ";       // between prompt and choice or answer
  std::vector<std::string> until = {"\n"};
  uint32_t max_new = 16;  // tokens to generate
};

struct Task {
  std::string name;  // of the file, without folder and ending
  std::vector<Probe> probes;
};

// `path` names the file in errors. `limit`: so many probes from the first; 0: all. Errors:
// kBadRequest, "PATH:LINE: ..." where a line is at fault.
protocol::Result<Task> ParseTask(const std::string& path, std::string_view bytes, uint32_t limit);

}  // namespace mk::eval
