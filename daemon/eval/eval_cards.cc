#include "daemon/eval/eval_cards.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>
#include <utility>

#include "daemon/errors.h"
#include "daemon/run_task.h"
#include "eval/chance.h"

namespace mk::daemon {
namespace {

// Of a model that is badly broken: replies carry finite numbers only.
double Finite(double value) {
  return std::min(value, std::numeric_limits<double>::max());
}

using protocol::Fail;
using protocol::Result;

protocol::Proportion ShareOf(double hits, uint64_t count) {
  const eval::Bounds bounds = eval::WilsonInterval(hits, count);
  const double share = count > 0 ? hits / static_cast<double>(count) : 0;
  return {hits, count, share, bounds.low, bounds.high};
}

// Hits by name, in the order in which names came.
class Tally {
 public:
  void Add(const std::string& name, double hits) {
    const auto [place, is_new] = places_.try_emplace(name, entries_.size());
    if (is_new) entries_.push_back({name, 0, 0});
    entries_[place->second].hits += hits;
    ++entries_[place->second].count;
  }
  std::vector<protocol::NamedProportion> Shares() const {
    std::vector<protocol::NamedProportion> shares;
    for (const Entry& entry : entries_) {
      shares.push_back({entry.name, ShareOf(entry.hits, entry.count)});
    }
    return shares;
  }

 private:
  struct Entry {
    std::string name;
    double hits = 0;
    uint64_t count = 0;
  };
  std::map<std::string, size_t> places_;
  std::vector<Entry> entries_;
};

size_t UnitsPerPrompt(const eval::Probe& probe) {
  return eval::HasChoices(probe.rule) ? probe.choices.size() : 1;
}

// The answer to one phrasing, whose units begin at `first`.
eval::Outcome OutcomeOf(const eval::Probe& probe, size_t first, const EvalWork& work) {
  if (probe.rule == eval::Rule::kGenerate) {
    eval::Outcome outcome;
    outcome.right = ScoreOf(work.of(first)).tokens == 1;
    return outcome;
  }
  std::vector<eval::Likelihood> likelihoods;
  for (size_t i = 0; i < UnitsPerPrompt(probe); ++i) {
    const UnitScore score = ScoreOf(work.of(first + i));
    likelihoods.push_back({-score.nats, score.tokens > 0 && score.top1 == score.tokens});
  }
  return eval::Judge(probe, likelihoods);
}

// What all outcomes of a task come to.
struct TaskSums {
  double right = 0;  // in probes
  double raw = 0;
  double norm = 0;
  double chance = 0;
  bool choices = true;  // all probes have some
  Tally categories;
  Tally phrasings;
  bool several = false;  // a probe has several phrasings
  bool named = false;    // a probe has a category
};

protocol::ProbeOutcome TakeProbe(const eval::Probe& probe, size_t& unit, const EvalWork& work,
                                 TaskSums& sums) {
  protocol::ProbeOutcome told{probe.id, probe.category, 0, {}, {}};
  const double part = 1 / static_cast<double>(probe.prompts.size());
  const bool choices = eval::HasChoices(probe.rule);
  for (size_t i = 0; i < probe.prompts.size(); ++i) {
    const eval::Outcome outcome = OutcomeOf(probe, unit, work);
    unit += UnitsPerPrompt(probe);
    told.score += outcome.right ? part : 0;
    sums.raw += outcome.raw ? part : 0;
    sums.norm += outcome.norm ? part : 0;
    sums.phrasings.Add(std::to_string(i + 1), outcome.right ? 1 : 0);
    told.picks.push_back(outcome.pick);
    if (choices) told.margin = told.margin.value_or(0) + outcome.margin * part;
  }
  sums.right += told.score;
  sums.categories.Add(probe.category, told.score);
  sums.choices = sums.choices && choices;
  sums.several = sums.several || probe.prompts.size() > 1;
  sums.named = sums.named || !probe.category.empty();
  if (choices) sums.chance += 1 / static_cast<double>(probe.choices.size());
  return told;
}

struct DocumentTokens {
  std::vector<int32_t> ids;  // of the text
  std::vector<int32_t> bos;  // what a prompt has before them
  uint64_t unknown = 0;
};

Result<DocumentTokens> TokensOf(const LoadedModel& loaded, const std::string& text) {
  if (!loaded.tokenizer) return Fail(NoTokenizer(loaded));
  auto plain = loaded.tokenizer->EncodeText(text);
  if (!plain) return Fail(ToProtocol(plain.error()));
  auto prompt = loaded.tokenizer->EncodePrompt(text);
  if (!prompt) return Fail(ToProtocol(prompt.error()));
  DocumentTokens tokens;
  tokens.ids = std::move(plain->ids);
  tokens.unknown = plain->unknown;
  const size_t before = prompt->ids.size() - std::min(prompt->ids.size(), tokens.ids.size());
  tokens.bos.assign(prompt->ids.begin(), prompt->ids.begin() + static_cast<ptrdiff_t>(before));
  return tokens;
}

DocumentUnits AddDocument(const DocumentTokens& tokens, uint64_t bytes, const Tokenizer& tokenizer,
                          EvalUnit unit, EvalWork& work) {
  DocumentUnits document{work.units.size(), 0, bytes, 0, tokens.unknown};
  uint64_t spelled = 0;
  for (const int32_t id : tokens.ids) spelled += tokenizer.TokenBytes(id).size();
  document.hidden = bytes - std::min(bytes, spelled);
  if (tokens.bos.empty() && !tokens.ids.empty()) {
    document.bytes -= std::min(bytes, tokenizer.TokenBytes(tokens.ids.front()).size());
  }
  for (size_t at = 0; at < tokens.ids.size(); at += kEvalWindow) {
    const size_t end = std::min(at + kEvalWindow, tokens.ids.size());
    const auto begin = tokens.ids.begin();
    unit.item.context_ids = tokens.bos;
    if (tokens.bos.empty() && at > 0) unit.item.context_ids = {tokens.ids[at - 1]};
    unit.item.ids.emplace(begin + static_cast<ptrdiff_t>(at), begin + static_cast<ptrdiff_t>(end));
    work.units.push_back(unit);
    ++document.count;
  }
  return document;
}

void Add(const UnitScore& one, UnitScore& sum) {
  sum.nats += one.nats;
  sum.tokens += one.tokens;
  sum.top1 += one.top1;
  sum.top5 += one.top5;
  sum.unk += one.unk;
}

}  // namespace

Result<std::vector<DocumentUnits>> AddText(const EvalText& text, const EvalModel& model,
                                           EvalUnit like, EvalWork& work) {
  std::vector<DocumentUnits> documents;
  for (const eval::Document& document : text.file.documents) {
    if (work.cancelled()) return Fail(protocol::ErrorCode::kCancelled, "cancelled");
    auto tokens = TokensOf(model.loaded(), document.text);
    if (!tokens) return Fail(std::move(tokens.error()));
    documents.push_back(
        AddDocument(*tokens, document.text.size(), *model.loaded().tokenizer, like, work));
  }
  return documents;
}

DocumentScore ScoreDocument(const DocumentUnits& document, const EvalWork& work, size_t side) {
  DocumentScore score;
  for (size_t i = document.first; i < document.first + document.count; ++i) {
    const bool pair = work.units[i].kind == EvalUnit::Kind::kPair;
    Add(pair ? PairOf(work.of(i)).sides[side] : ScoreOf(work.of(i)), score.sum);
  }
  score.bytes = document.bytes;
  score.bits = score.sum.nats / std::numbers::ln2 + 8 * static_cast<double>(document.hidden);
  return score;
}

protocol::TextCard CardOf(const EvalText& text, const std::vector<DocumentUnits>& documents,
                          const EvalWork& work, size_t side) {
  protocol::TextCard card;
  card.name = text.file.name;
  card.sha256 = text.sha256;
  card.documents = documents.size();
  UnitScore sum;
  double bits = 0;
  for (const DocumentUnits& document : documents) {
    const DocumentScore score = ScoreDocument(document, work, side);
    Add(score.sum, sum);
    bits += score.bits;
    card.bytes += score.bytes;
    card.unk += document.unk;
    card.hidden += document.hidden;
  }
  card.tokens = sum.tokens;
  card.nats = sum.nats;
  if (sum.tokens > 0)
    card.perplexity = Finite(std::exp(sum.nats / static_cast<double>(sum.tokens)));
  if (card.bytes > 0) card.bits_per_byte = bits / static_cast<double>(card.bytes);
  card.perplexity_per_byte = Finite(std::exp2(card.bits_per_byte));
  card.top1 = ShareOf(static_cast<double>(sum.top1), sum.tokens);
  card.top5 = ShareOf(static_cast<double>(sum.top5), sum.tokens);
  return card;
}

size_t AddTask(const EvalTask& task, size_t model, EvalWork& work) {
  const size_t first = work.units.size();
  for (const eval::Probe& probe : task.task.probes) {
    EvalUnit unit;
    unit.model = model;
    for (const std::string& prompt : probe.prompts) {
      if (probe.rule == eval::Rule::kGenerate) {
        unit.kind = EvalUnit::Kind::kGenerate;
        unit.item.text = prompt;
        unit.probe = &probe;
        work.units.push_back(unit);
        continue;
      }
      unit.item.context = prompt;
      const auto& texts = eval::HasChoices(probe.rule) ? probe.choices : probe.answers;
      for (const std::string& text : texts) {
        unit.item.text = probe.delimiter + text;
        work.units.push_back(unit);
      }
    }
  }
  return first;
}

protocol::TaskCard CardOf(const EvalTask& task, size_t first, const EvalWork& work) {
  protocol::TaskCard card;
  card.name = task.task.name;
  card.sha256 = task.sha256;
  card.probes = task.task.probes.size();
  TaskSums sums;
  for (const eval::Probe& probe : task.task.probes) {
    card.phrasings += probe.prompts.size();
    card.outcomes.push_back(TakeProbe(probe, first, work, sums));
  }
  card.accuracy = ShareOf(sums.right, card.probes);
  if (sums.choices) {
    card.acc = ShareOf(sums.raw, card.probes);
    card.acc_norm = ShareOf(sums.norm, card.probes);
    card.chance = sums.chance / static_cast<double>(card.probes);
  }
  if (sums.named) card.categories = sums.categories.Shares();
  if (sums.several) card.by_phrasing = sums.phrasings.Shares();
  return card;
}

protocol::EvaluatedModel Describe(const EvalModel& model) {
  const ModelInfo& info = model.model().info();
  protocol::EvaluatedModel told;
  told.path = info.path;
  told.architecture = info.architecture;
  told.fingerprint = info.fingerprint;
  told.precision = PrecisionName(model.precision);
  told.file_bytes = info.file_bytes;
  told.parameters = info.parameters;
  told.vocab = info.vocab;
  return told;
}

void AddTrust(const EvalWork& work, size_t model, protocol::EvaluatedModel& told,
              std::vector<std::string>& warnings) {
  uint64_t unknown = 0;
  for (size_t i = 0; i < work.units.size(); ++i) {
    if (work.units[i].kind == EvalUnit::Kind::kPair || work.units[i].model != model) continue;
    const UnitScore score = ScoreOf(work.of(i));
    told.shadow_tokens += score.shadow_tokens;
    told.failed_experts += score.failed_experts;
    unknown += score.unk;
  }
  told.degraded = told.shadow_tokens > 0 || told.failed_experts > 0;
  if (unknown > 0) {
    warnings.push_back(std::to_string(unknown) + " tokens stand for text that the vocabulary of " +
                       told.path + " cannot spell");
  }
}

}  // namespace mk::daemon
