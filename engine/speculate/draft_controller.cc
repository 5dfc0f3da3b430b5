#include "engine/speculate/draft_controller.h"

#include <algorithm>

namespace mk {
namespace {

constexpr double kForget = 0.06;       // weight of the newest token in a chance
constexpr double kLeastChance = 0.01;  // of a draft to be right up to its last token
constexpr double kLeastGain = 1.02;    // a draft must promise so much more tokens per second

// Before anything was seen: longer matches are better, short ones mostly come about by chance.
constexpr std::array<double, 6> kFirstChance = {0.15, 0.25, 0.4, 0.6, 0.8, 0.9};

}  // namespace

size_t DraftController::MatchClass(size_t match) {
  if (match <= 3) return match < 3 ? 0 : 1;
  if (match < 8) return match < 6 ? 2 : 3;
  return match < 16 ? 4 : 5;
}

// Of positions 1, 2, 3 to 4, 5 to 8, 9 and more.
size_t DraftController::PositionClass(size_t position) {
  if (position <= 2) return position - 1;
  if (position <= 4) return 2;
  return position <= 8 ? 3 : 4;
}

double DraftController::ChanceOf(size_t match_class, size_t position) const {
  const auto& chances = chances_[match_class];
  // As long as a position was not seen, the one before it tells most.
  for (size_t i = PositionClass(position) + 1; i-- > 0;) {
    if (chances[i].seen > 0) return chances[i].value;
  }
  return kFirstChance[match_class];
}

// What a pass costs more than one without the draft.
double DraftController::Loss(size_t drafted, const PassCosts& costs) const {
  return std::max(0.0, costs.Estimate(others_ + 1 + drafted) - costs.Estimate(others_ + 1));
}

size_t DraftController::Affordable(size_t drafted, const PassCosts& costs) const {
  if (Loss(drafted, costs) <= account_) return drafted;
  size_t least = 0;  // is paid for; `drafted` is not
  while (drafted - least > 1) {
    const size_t half = least + (drafted - least) / 2;
    (Loss(half, costs) <= account_ ? least : drafted) = half;
  }
  return least;
}

size_t DraftController::Choose(size_t match, size_t length, size_t others, const PassCosts& costs) {
  match_class_ = MatchClass(match);
  others_ = others;
  const double plain = costs.Estimate(others + 1);
  if (plain <= 0) return 0;
  if (!opened_) account_ = kFirstPaid * plain / static_cast<double>(others + 1);
  opened_ = true;
  if (length == 0) return 0;

  const auto rows = static_cast<double>(others);
  double best_rate = kLeastGain * (rows + 1) / plain;
  size_t best = 0;
  double expected = 1;
  double all = 1;
  for (size_t n = 1; n <= length; ++n) {
    all *= ChanceOf(match_class_, n);
    if (all < kLeastChance) break;
    expected += all;
    const double rate = (rows + expected) / costs.Estimate(others + 1 + n);
    if (rate > best_rate) {
      best_rate = rate;
      best = n;
    }
  }
  if (best > 0 || without_draft_ < kProbeEvery) return Affordable(best, costs);
  // A probe leaves enough for a draft that promises something.
  const size_t probe = std::min(length, kProbeTokens);
  return 2 * Loss(probe, costs) <= account_ ? probe : 0;
}

void DraftController::Passed(size_t drafted, size_t accepted, const PassCosts& costs) {
  const double plain = costs.Estimate(others_ + 1) / static_cast<double>(others_ + 1);
  account_ += plain * (kPaidIn * static_cast<double>(1 + accepted) + static_cast<double>(accepted));
  account_ -= Loss(drafted, costs);
  account_ = std::clamp(account_, 0.0, kMostPaid * plain);
  without_draft_ = drafted > 0 ? 0 : without_draft_ + 1;
  for (size_t i = 1; i <= std::min(drafted, accepted + 1); ++i) {
    Chance& chance = chances_[match_class_][PositionClass(i)];
    if (chance.seen == 0) chance.value = ChanceOf(match_class_, i);
    chance.seen += 1;
    const double weight = std::max(kForget, 1 / (chance.seen + 1));
    chance.value += weight * ((i <= accepted ? 1.0 : 0.0) - chance.value);
  }
}

}  // namespace mk
