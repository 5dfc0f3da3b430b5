// What forward passes say of the experts that they read, against the routers' picks as an observer
// sees them.

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/model/run_model.h"

namespace mk::test {
namespace {

class Picks : public ForwardObserver {
 public:
  void OnRouter(size_t item, size_t /*position*/, size_t layer, std::span<const int32_t> experts,
                std::span<const float> /*weights*/) override {
    for (const int32_t expert : experts) {
      ++picks_;
      of_layer_[layer].insert(expert);
      of_item_[{layer, item}].insert(expert);
    }
  }
  uint64_t picks() const { return picks_; }
  uint64_t reads() const { return Total(of_layer_); }
  uint64_t reads_alone() const { return Total(of_item_); }

 private:
  template <typename Map>
  static uint64_t Total(const Map& sets) {
    uint64_t total = 0;
    for (const auto& [key, experts] : sets) total += experts.size();
    return total;
  }
  uint64_t picks_ = 0;
  std::map<size_t, std::set<int32_t>> of_layer_;
  std::map<std::pair<size_t, size_t>, std::set<int32_t>> of_item_;
};

class ExpertUseOf : public testing::TestWithParam<const char*> {};

TEST_P(ExpertUseOf, IsWhatTheRoutersPicked) {
  const auto model = Load(std::string(MK_TEST_DATA) + "/golden/" + GetParam() + "/model.bin");
  const auto executor = MakeExecutor(2);
  ExpertUse before;
  // One that reads, three that decode, then one alone.
  for (const std::vector<size_t>& lengths : {std::vector<size_t>{20, 1, 1, 1}, {1}, {64}}) {
    Picks picks;
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::vector<std::vector<int32_t>> tokens;
    std::vector<ForwardItem> items;
    for (size_t i = 0; i < lengths.size(); ++i) {
      sequences.push_back(MakeSequence(*model));
      tokens.push_back(RandomTokens(lengths[i], model->info().vocab, static_cast<uint32_t>(i)));
    }
    for (size_t i = 0; i < lengths.size(); ++i) {
      items.push_back({sequences[i].get(), tokens[i], LogitsWanted::kNone, {}});
    }
    ASSERT_TRUE(model->Forward(*executor, items, &picks));
    const ExpertUse now = executor->expert_use();
    EXPECT_EQ(now.picks - before.picks, picks.picks());
    EXPECT_EQ(now.reads - before.reads, picks.reads());
    EXPECT_EQ(now.reads_alone - before.reads_alone, picks.reads_alone());
    EXPECT_EQ(picks.reads_alone() > picks.reads(), lengths.size() > 1);
    before = now;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ExpertUseOf, testing::Values("k3/k3b", "dsv4/a"),
                         [](const auto& one) { return std::string(one.param).substr(0, 2); });

}  // namespace
}  // namespace mk::test
