// From the results of two models on the same units to how they differ.

#pragma once

#include <string>
#include <vector>

#include "daemon/eval/eval_cards.h"
#include "eval/bootstrap.h"

namespace mk::daemon {

// The same text as each model was given it; with units that both read, the same twice.
struct TextOfBoth {
  std::vector<DocumentUnits> a;
  std::vector<DocumentUnits> b;
  bool paired = false;  // units that both read
};

// Why next tokens of the two cannot be compared one by one; "": they can.
std::string WhyUnlike(const EvalModel& a, const EvalModel& b);

protocol::ComparedText CompareText(const EvalText& text, const TextOfBoth& both,
                                   const EvalWork& work, const eval::BootstrapOptions& options);
// `a` and `b`: as AddTask gave them.
protocol::ComparedTask CompareTask(const EvalTask& task, size_t a, size_t b, const EvalWork& work,
                                   const eval::BootstrapOptions& options);
// Over all texts, whose units both have read.
protocol::Fidelity FidelityOf(const std::vector<TextOfBoth>& texts, const EvalWork& work,
                              const eval::BootstrapOptions& options);
// What all comes to, a sentence per measure.
std::vector<std::string> VerdictOf(const protocol::CompareDone& done);

}  // namespace mk::daemon
