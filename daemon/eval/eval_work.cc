#include "daemon/eval/eval_work.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "daemon/errors.h"
#include "daemon/eval/pair_task.h"
#include "daemon/run_task.h"
#include "daemon/score_task.h"
#include "engine/format/digest.h"
#include "eval/task_score.h"
#include "protocol/job_record.h"

namespace mk::daemon {
namespace {

using Kind = EvalUnit::Kind;
using Clock = std::chrono::steady_clock;

// Tasks of a round: as many prompts as a forward pass takes blocks of.
constexpr size_t kLanes = kMaxForwardTokens / kPrefillBlock;
// Units of a task.
constexpr size_t kUnitsPerLane = 16;
// Tokens of a round, about, when all lanes have something to do: results are kept after a round,
// and slow models shall not lose much.
constexpr size_t kRoundTokens = 4096;
// As other jobs: saving takes at most this part of the time.
constexpr double kSavingShare = 0.05;
constexpr std::chrono::duration<double> kSaveAfter{1};

constexpr std::string_view kMagic = "MKEVAL1\n";
constexpr size_t kScoreNumbers = 7;
constexpr size_t kPairNumbers = 10;

// About what a unit reads.
size_t TokensOf(const EvalUnit& unit) {
  constexpr size_t kBytesPerToken = 4;
  if (unit.item.ids) return unit.item.ids->size();
  const size_t text = unit.item.text ? unit.item.text->size() : 0;
  return 1 + (unit.item.context.size() + text) / kBytesPerToken;
}

UnitResult ToResult(const protocol::TextScore& score) {
  return {-score.logprob,
          static_cast<double>(score.tokens),
          static_cast<double>(score.top1),
          static_cast<double>(score.top5),
          static_cast<double>(score.unk),
          0,
          0};
}

UnitResult ToResult(const PairedText& text) {
  UnitResult result = {static_cast<double>(text.tokens), static_cast<double>(text.same_top),
                       static_cast<double>(text.shared_top),
                       static_cast<double>(text.overlap.size())};
  for (const PairedText::Side& side : text.sides) {
    result.insert(result.end(),
                  {side.nats, static_cast<double>(side.top1), static_cast<double>(side.top5)});
  }
  result.insert(result.end(), text.overlap.begin(), text.overlap.end());
  result.insert(result.end(), text.kl.begin(), text.kl.end());
  return result;
}

// A count; 0 for what is none.
uint64_t Whole(double value) {
  constexpr double kMost = 9007199254740992;  // 2^53
  return value > 0 && value <= kMost ? static_cast<uint64_t>(value) : 0;
}

template <typename T>
void Put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// False: there are not so many bytes.
template <typename T>
bool Get(std::string_view& bytes, T& value) {
  if (bytes.size() < sizeof value) return false;
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return true;
}

}  // namespace

UnitScore ScoreOf(const UnitResult& result) {
  if (result.size() != kScoreNumbers) return {};
  return {result[0],        Whole(result[1]), Whole(result[2]), Whole(result[3]),
          Whole(result[4]), Whole(result[5]), Whole(result[6])};
}

UnitPair PairOf(const UnitResult& result) {
  UnitPair pair;
  if (result.size() < kPairNumbers) return pair;
  const uint64_t tokens = Whole(result[0]);
  const uint64_t layers = Whole(result[3]);
  const size_t rest = result.size() - kPairNumbers;
  if (layers > rest || tokens != rest - layers) return pair;
  pair.same_top = Whole(result[1]);
  pair.shared_top = Whole(result[2]);
  for (size_t side = 0; side < 2; ++side) {
    const size_t at = 4 + 3 * side;
    pair.sides[side] = {result[at], tokens, Whole(result[at + 1]), Whole(result[at + 2]), 0, 0, 0};
  }
  pair.overlap = std::span(result).subspan(kPairNumbers, layers);
  pair.kl = std::span(result).subspan(kPairNumbers + layers, tokens);
  return pair;
}

std::string EncodeResults(uint64_t digest, std::span<const UnitResult> results) {
  std::string bytes(kMagic);
  Put(bytes, digest);
  Put(bytes, static_cast<uint64_t>(results.size()));
  for (const UnitResult& result : results) {
    Put(bytes, static_cast<uint64_t>(result.size()));
    for (const double number : result) Put(bytes, number);
  }
  return bytes;
}

std::vector<UnitResult> DecodeResults(uint64_t digest, size_t most, std::string_view bytes) {
  uint64_t told = 0;
  uint64_t count = 0;
  if (!bytes.starts_with(kMagic)) return {};
  bytes.remove_prefix(kMagic.size());
  if (!Get(bytes, told) || told != digest || !Get(bytes, count) || count > most) return {};
  std::vector<UnitResult> results;
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t numbers = 0;
    if (!Get(bytes, numbers) || numbers > bytes.size() / sizeof(double)) return {};
    UnitResult& result = results.emplace_back(numbers);
    for (double& number : result) Get(bytes, number);
  }
  if (!bytes.empty()) return {};
  return results;
}

bool EvalWork::SameShape() const {
  if (models_.size() != 2) return false;
  const ModelInfo& a = models_[0].model().info();
  const ModelInfo& b = models_[1].model().info();
  return a.architecture == b.architecture && a.layers == b.layers && a.experts == b.experts &&
         a.top_k == b.top_k && a.experts > 0;
}

// Everything that the results depend on.
uint64_t EvalWork::DigestOf() const {
  std::string all = chunked_prefill_ ? "chunked" : "stepwise";
  if (fallback_) all += ", shadows";
  const auto add = [&](std::string_view text) {
    Put(all, text.size());
    all += text;
  };
  for (const EvalModel& model : models_) {
    add(model.model().info().fingerprint);
    add(PrecisionName(model.precision));
  }
  for (const EvalUnit& unit : units) {
    Put(all, static_cast<int>(unit.kind));
    Put(all, unit.model);
    add(unit.item.context);
    add(unit.item.text.value_or(""));
    for (const int32_t id : unit.item.context_ids) Put(all, id);
    Put(all, int32_t{-1});
    if (unit.item.ids) {
      for (const int32_t id : *unit.item.ids) Put(all, id);
    }
    if (unit.probe == nullptr) continue;
    Put(all, unit.probe->max_new);
    for (const auto* list : {&unit.probe->answers, &unit.probe->until}) {
      for (const std::string& text : *list) add(text);
    }
  }
  return Xxh3Of(std::as_bytes(std::span(all)));
}

protocol::Status EvalWork::Run() {
  digest_ = DigestOf();
  results_ = DecodeResults(digest_, units.size(), context_.checkpoint());
  saved_ = Clock::now();
  while (true) {
    context_.Report({"eval", results_.size(), units.size(), "texts"});
    if (results_.size() == units.size()) return {};
    if (auto ran = RunRound(NextRound()); !ran) return ran;
    SaveProgress();
  }
}

// The next units of one kind and model, dealt out to the lanes.
std::vector<EvalWork::Lane> EvalWork::NextRound() const {
  const size_t first = results_.size();
  const EvalUnit& like = units[first];
  const size_t most = kLanes * (like.kind == Kind::kGenerate ? 1 : kUnitsPerLane);
  std::vector<Lane> lanes;
  size_t tokens = 0;
  for (size_t i = first; i < units.size() && i - first < most; ++i) {
    if (units[i].kind != like.kind || units[i].model != like.model) break;
    if (lanes.size() == kLanes && tokens >= kRoundTokens) break;
    tokens += TokensOf(units[i]);
    if (lanes.size() < kLanes) lanes.emplace_back();
    lanes[(i - first) % kLanes].push_back(i);
  }
  return lanes;
}

protocol::Status EvalWork::RunRound(const std::vector<Lane>& lanes) {
  std::vector<PreparedRun> runs;
  pairs_.clear();
  for (const Lane& lane : lanes) {
    auto run = Prepare(lane);
    if (!run) return protocol::Fail(std::move(run.error()));
    runs.push_back(std::move(*run));
  }
  auto bodies = engine_.RunTogether(std::move(runs), context_);
  if (!bodies) return protocol::Fail(std::move(bodies.error()));
  return TakeResults(lanes, std::move(*bodies));
}

protocol::Result<PreparedRun> EvalWork::Prepare(const Lane& lane) {
  switch (units[lane.front()].kind) {
    case Kind::kGenerate:
      return PrepareText(units[lane.front()]);
    case Kind::kPair:
      return PreparePairs(lane);
    case Kind::kScore:
      break;
  }
  return PrepareScores(lane);
}

protocol::Result<PreparedRun> EvalWork::PrepareScores(const Lane& lane) {
  const EvalModel& model = models_[units[lane.front()].model];
  protocol::ScoreArgs args;
  args.tokens = false;
  args.chunked_prefill = chunked_prefill_;
  args.stream_fallback = fallback_;
  for (const size_t unit : lane) args.texts.push_back(units[unit].item);
  return PrepareScore(model.lease.loaded(), model.precision, std::move(args));
}

protocol::Result<PreparedRun> EvalWork::PrepareText(const EvalUnit& unit) {
  const EvalModel& model = models_[unit.model];
  protocol::RunArgs args;
  args.prompt = unit.item.text;
  args.raw = true;
  args.max_new = unit.probe->max_new;
  args.stop = unit.probe->until;
  args.chunked_prefill = chunked_prefill_;
  args.stream_fallback = fallback_;
  args.prefix_cache = false;
  return PrepareRun(model.lease.loaded(), model.precision, std::move(args));
}

protocol::Result<PreparedRun> EvalWork::PreparePairs(const Lane& lane) {
  std::vector<ScoredText> texts;
  for (const size_t unit : lane) {
    auto text = EncodeScored(models_[0].loaded(), units[unit].item, true);
    if (!text) return protocol::Fail(std::move(text.error()));
    texts.push_back(std::move(*text));
  }
  pairs_.push_back(std::make_shared<std::vector<PairedText>>());
  return PreparePair({PairTask::Side{models_[0].lease.loaded(), models_[0].precision},
                      PairTask::Side{models_[1].lease.loaded(), models_[1].precision}},
                     chunked_prefill_, SameShape(), std::move(texts), pairs_.back());
}

protocol::Status EvalWork::TakeResults(const std::vector<Lane>& lanes,
                                       std::vector<protocol::Body> bodies) {
  size_t end = results_.size();
  for (const Lane& lane : lanes) end = std::max(end, lane.back() + 1);
  results_.resize(end);
  for (size_t l = 0; l < lanes.size(); ++l) {
    const Lane& lane = lanes[l];
    if (auto* error = std::get_if<protocol::Error>(&bodies[l])) {
      return protocol::Fail(std::move(*error));
    }
    if (const auto* run = std::get_if<protocol::RunDone>(&bodies[l])) {
      const bool right = eval::JudgeText(*units[lane.front()].probe, run->text).right;
      results_[lane.front()] = {0,
                                right ? 1.0 : 0.0,
                                0,
                                0,
                                0,
                                static_cast<double>(run->trust.shadow_tokens),
                                static_cast<double>(run->trust.failed_experts)};
    } else if (!pairs_.empty()) {
      for (size_t i = 0; i < lane.size(); ++i) results_[lane[i]] = ToResult((*pairs_[l])[i]);
    } else {
      const auto* done = std::get_if<protocol::ScoreDone>(&bodies[l]);
      if (done == nullptr || done->texts.size() != lane.size()) {
        return protocol::Fail(protocol::ErrorCode::kInternal, "a score of other texts");
      }
      for (size_t i = 0; i < lane.size(); ++i) results_[lane[i]] = ToResult(done->texts[i]);
      UnitResult& teller = results_[lane.front()];
      teller[kScoreNumbers - 2] = static_cast<double>(done->trust.shadow_tokens);
      teller[kScoreNumbers - 1] = static_cast<double>(done->trust.failed_experts);
    }
  }
  return {};
}

// What is too large is not kept: a run that follows goes on from what was kept last.
void EvalWork::SaveProgress() {
  const auto begin = Clock::now();
  if (begin - saved_ < std::max(kSaveAfter, saving_took_ / kSavingShare)) return;
  std::string bytes = EncodeResults(digest_, results_);
  if (bytes.size() <= protocol::kMaxCheckpointBytes) {
    context_.SaveCheckpoint(std::move(bytes), results_.size());
  }
  saved_ = Clock::now();
  saving_took_ = saved_ - begin;
}

}  // namespace mk::daemon
