// What answers a model gives to a probe, from the likelihoods of texts.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "eval/task.h"

namespace mk::eval {

// Of a choice, or of the one answer of Rule::kGreedy, behind one phrasing.
struct Likelihood {
  double logprob = 0;   // nats
  bool greedy = false;  // every token was the likeliest in its place
};

// The answer to one phrasing.
struct Outcome {
  bool right = false;  // by the rule of the probe
  bool raw = false;    // of choices: by log-likelihood
  bool norm = false;   // of choices: by log-likelihood per character
  int32_t pick = -1;   // of choices: the one that the rule picks
  double margin = 0;  // of choices: what the right one has over the best of the others, by the rule
};

// `likelihoods`: of the choices in order, or of the answer. The first of equal ones is picked, as
// by the common harnesses. Not of Rule::kGenerate.
Outcome Judge(const Probe& probe, std::span<const Likelihood> likelihoods);

// Of Rule::kGenerate: the text up to the first of `until`, without space around it, is an answer,
// letter by letter.
Outcome JudgeText(const Probe& probe, std::string_view generated);

// Unicode characters of a text: what log-likelihoods are divided by.
size_t Characters(std::string_view utf8);

}  // namespace mk::eval
