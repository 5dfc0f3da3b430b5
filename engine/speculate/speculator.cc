#include "engine/speculate/speculator.h"

#include <algorithm>
#include <new>
#include <utility>

namespace mk {

Speculator::Speculator(const SpeculationOptions& options, size_t vocab,
                       std::shared_ptr<PassCosts> costs)
    : options_(options),
      vocab_(vocab),
      costs_(costs ? std::move(costs) : std::make_shared<PassCosts>()) {
  Clear();
  stats_.drafted_at.resize(options_.longest());
  stats_.accepted_at.resize(options_.longest());
}

void Speculator::Clear() {
  if (options_.automaton > 0) automaton_.emplace();
  if (options_.ngram > 0) ngram_.emplace();
  held_ = 0;
}

uint64_t Speculator::MaxBytes(const SpeculationOptions& options, size_t tokens) {
  return (options.ngram > 0 ? NgramProposer::MaxBytes(tokens) : 0) +
         (options.automaton > 0 ? SuffixAutomaton::MaxBytes(tokens) : 0);
}

bool Speculator::CatchUp(std::span<const int32_t> prompt, std::span<const int32_t> emitted) {
  const size_t all = prompt.size() + emitted.size();
  // Of a text that is too long the newer half is held, so that this is done once in a long while.
  if (!gave_up_ && held_ + all - seen_ > kMaxHistory) {
    Clear();
    seen_ = all - kMaxHistory / 2;
  }
  const size_t end = std::min(all, seen_ + kFeedAtOnce);
  try {
    for (; !gave_up_ && seen_ < end; ++seen_, ++held_) {
      Feed(seen_ < prompt.size() ? prompt[seen_] : emitted[seen_ - prompt.size()]);
    }
  } catch (const std::bad_alloc&) {
    gave_up_ = true;
    automaton_.reset();
    ngram_.reset();
  }
  return !gave_up_ && seen_ == all;
}

void Speculator::Feed(int32_t token) {
  if (automaton_) automaton_->Feed(token);
  if (ngram_) ngram_->Feed(token);
}

Draft Speculator::Guess(size_t most) const {
  if (automaton_) {
    Draft draft = automaton_->Propose(most);
    if (!draft.tokens.empty() || !ngram_) return draft;
  }
  Draft draft = ngram_->Propose(most);
  // The text ended before the draft was long enough: if it repeats itself, then with this period.
  const size_t period = draft.tokens.size();
  while (period > 0 && draft.tokens.size() < most) {
    draft.tokens.push_back(draft.tokens[draft.tokens.size() - period]);
  }
  return draft;
}

std::span<const int32_t> Speculator::NextDraft(size_t most) {
  Draft draft = Guess(std::min(most, options_.longest()));
  const auto strange = std::find_if(draft.tokens.begin(), draft.tokens.end(), [&](int32_t id) {
    return id < 0 || static_cast<size_t>(id) >= vocab_;
  });
  draft.tokens.erase(strange, draft.tokens.end());
  const size_t worth = controller_.Choose(draft.match, draft.tokens.size(), others_, *costs_);
  if (options_.adaptive) draft.tokens.resize(worth);
  draft_ = std::move(draft.tokens);
  return draft_;
}

void Speculator::Took(size_t rows, size_t own, double seconds) {
  costs_->Observe(rows, seconds);
  others_ = rows - std::min(rows, own);
  if (own > 1) stats_.verify_seconds += seconds;
}

void Speculator::Verified(size_t drafted, size_t accepted, bool bonus, double rollback_seconds) {
  controller_.Passed(drafted, accepted, *costs_);
  ++(drafted > 0 ? stats_.passes : stats_.singles);
  stats_.drafted += drafted;
  stats_.accepted += accepted;
  stats_.bonus += drafted > 0 && bonus ? 1 : 0;
  stats_.rollback_seconds += rollback_seconds;
  for (size_t i = 0; i < drafted; ++i) {
    ++stats_.drafted_at[i];
    if (i < accepted) ++stats_.accepted_at[i];
  }
}

}  // namespace mk
