#include "daemon/run_lens.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "daemon/lens_row.h"
#include "daemon/token_text.h"

namespace mk::daemon {

bool RunLens::Wanted(const protocol::RunArgs& args) {
  return !args.lens.empty() || args.want_hidden_stats;
}

protocol::Status RunLens::Check(const ModelInfo& info, const protocol::RunArgs& args) {
  for (const uint32_t layer : args.lens_layers) {
    if (layer < info.layers) continue;
    return protocol::Fail(protocol::ErrorCode::kBadRequest,
                          "the model has no layer " + std::to_string(layer),
                          "its layers are 0 to " + std::to_string(info.layers - 1));
  }
  return {};
}

RunLens::Mode RunLens::ModeOf(const std::string& name) {
  if (name == "last") return Mode::kLast;
  if (name == "answer") return Mode::kAnswer;
  return name == "all" ? Mode::kAll : Mode::kNone;
}

size_t RunLens::KeptLayers(const ModelInfo& info, const protocol::RunArgs& args) {
  if (args.lens.empty()) return 1;
  return args.lens_layers.empty() ? info.layers
                                  : std::min(info.layers, args.lens_layers.size() + 1);
}

uint64_t RunLens::Bytes(const ModelInfo& info, const protocol::RunArgs& args) {
  if (!Wanted(args)) return 0;
  constexpr uint64_t kLogitsAtOnce = 32;  // rows of one product of Model::Lens
  const uint64_t layers = KeptLayers(info, args);
  const uint64_t draft = std::max({args.spec, args.spec_rosa, args.spec_shadow});
  const uint64_t positions = args.lens == "all"      ? std::max(kPrefillBlock, 1 + draft)
                             : args.lens == "answer" ? 1 + draft
                                                     : 1;
  // A row is kept, normalised, and in q8 has two bytes per value beside.
  const uint64_t rows = layers * (positions * info.streams + 2) * info.hidden;
  return (rows + std::min(layers, kLogitsAtOnce) * info.vocab) * sizeof(float);
}

RunLens::RunLens(std::shared_ptr<const Model> model, std::shared_ptr<const Tokenizer> tokenizer,
                 Precision precision, const protocol::RunArgs& args)
    : model_(std::move(model)),
      tokenizer_(std::move(tokenizer)),
      precision_(precision),
      top_(args.lens_top),
      width_(model_->info().streams * model_->info().hidden),
      mode_(ModeOf(args.lens)),
      stats_wanted_(args.want_hidden_stats) {
  const size_t layers = model_->info().layers;
  shown_.assign(layers, mode_ != Mode::kNone && args.lens_layers.empty());
  if (mode_ != Mode::kNone) {
    for (const uint32_t layer : args.lens_layers) shown_[layer] = true;
  }
  slot_of_.assign(layers, std::nullopt);
  for (size_t layer = 0; layer < layers; ++layer) {
    if (!shown_[layer] && layer + 1 < layers) continue;
    slot_of_[layer] = layer_of_.size();
    layer_of_.push_back(layer);
  }
}

void RunLens::Begin(const Pass& pass) {
  // Of the prompt its end. Without a prompt to read, what is read first stands for that: of a draft
  // its first token, which is the run's in any case.
  const bool only_one = mode_ != Mode::kAll && (pass.of_prompt || mode_ != Mode::kAnswer);
  const bool looks = mode_ == Mode::kAll || !pass.of_prompt || pass.ends_prompt;
  kept_ = !looks || !wanted() ? 0 : only_one ? 1 : pass.tokens;
  first_ = pass.of_prompt ? pass.first + pass.tokens - kept_ : pass.first;
  stats_at_ = pass.of_prompt && kept_ > 0 ? kept_ - 1 : 0;
  ends_prompt_ = pass.ends_prompt;
  rows_.assign(kept_ * layer_of_.size() * width_, 0.0f);
  if (stats_wanted_) rms_.assign(slot_of_.size(), 0.0);
}

std::span<float> RunLens::Row(size_t kept, size_t slot) {
  return std::span(rows_).subspan((kept * layer_of_.size() + slot) * width_, width_);
}

std::optional<size_t> RunLens::Kept(size_t position) const {
  if (position < first_ || position - first_ >= kept_) return std::nullopt;
  return position - first_;
}

void RunLens::OnHidden(size_t, size_t position, size_t layer, std::span<const float> rows) {
  if (kept_ == 0) return;
  for (size_t i = 0; i * width_ < rows.size(); ++i) {
    const auto kept = Kept(position + i);
    if (!kept) continue;
    const auto row = rows.subspan(i * width_, width_);
    if (slot_of_[layer]) std::copy(row.begin(), row.end(), Row(*kept, *slot_of_[layer]).begin());
    if (stats_wanted_ && *kept == stats_at_) rms_[layer] = RootMeanSquare(row);
  }
}

bool RunLens::WantsOutput(size_t) const {
  return kept_ > 0 && (model_->info().streams == 1 || stats_wanted_);
}

void RunLens::OnOutput(size_t, size_t position, std::span<const float> rows) {
  const size_t hidden = model_->info().hidden;
  for (size_t i = 0; i * hidden < rows.size(); ++i) {
    const auto kept = Kept(position + i);
    if (!kept) continue;
    const auto row = rows.subspan(i * hidden, hidden);
    // A single stream is mixed before the head in a way of its own: that is what leaves the model.
    if (width_ == hidden) {
      std::copy(row.begin(), row.end(), Row(*kept, layer_of_.size() - 1).begin());
    }
    if (stats_wanted_ && *kept == stats_at_) output_rms_ = RootMeanSquare(row);
  }
}

std::string RunLens::TextOf(int32_t id) const {
  return tokenizer_ ? TokenText(*tokenizer_, id) : std::string();
}

Status RunLens::ExamineOne(Executor& executor, size_t kept, const TokenAt& token_at,
                           protocol::LensChunk& chunk, protocol::HiddenStatsChunk* stats) {
  const std::vector<std::string>& kinds = model_->info().layer_kinds;
  chunk.position = first_ + kept;
  chunk.id = token_at(chunk.position).value_or(0);
  chunk.text = TextOf(chunk.id);
  chunk.next = token_at(chunk.position + 1);
  if (chunk.next) chunk.next_text = TextOf(*chunk.next);
  const size_t slots = layer_of_.size();
  const std::span<const float> streams =
      std::span(rows_).subspan(kept * slots * width_, slots * width_);
  return model_->Lens(executor, precision_, streams, [&](size_t slot, auto logits) {
    const size_t layer = layer_of_[slot];
    if (stats != nullptr && slot + 1 == slots) {
      std::tie(stats->logits_mean, stats->logits_std) = MeanAndDeviation(logits);
    }
    if (!shown_[layer]) return;
    protocol::LensLayer row = ReduceLensRow(logits, top_, chunk.next);
    row.layer = static_cast<uint32_t>(layer);
    row.kind = kinds[layer];
    if (tokenizer_) {
      for (const int32_t id : row.ids) row.texts.push_back(TextOf(id));
    }
    chunk.layers.push_back(std::move(row));
  });
}

Status RunLens::Examine(Executor& executor, size_t end, size_t prompt_tokens,
                        const TokenAt& token_at, std::vector<protocol::Body>& messages) {
  for (size_t kept = 0; kept < kept_ && first_ + kept < end; ++kept) {
    protocol::LensChunk chunk;
    protocol::HiddenStatsChunk stats;
    const bool ends =
        stats_wanted_ && kept == stats_at_ && (ends_prompt_ || first_ + kept >= prompt_tokens);
    if (mode_ == Mode::kNone && !ends) continue;
    Status done = ExamineOne(executor, kept, token_at, chunk, ends ? &stats : nullptr);
    if (!done) return done;
    if (chunk.position >= prompt_tokens) chunk.index = chunk.position - prompt_tokens;
    if (ends) {
      stats.position = chunk.position;
      stats.output_rms = output_rms_;
      for (size_t layer = 0; layer < rms_.size(); ++layer) {
        stats.layers.push_back(
            {static_cast<uint32_t>(layer), model_->info().layer_kinds[layer], rms_[layer]});
      }
      messages.emplace_back(std::move(stats));
      stats_wanted_ = false;
    }
    if (mode_ != Mode::kNone) messages.emplace_back(std::move(chunk));
    if (mode_ == Mode::kLast) mode_ = Mode::kNone;
  }
  kept_ = 0;
  return {};
}

}  // namespace mk::daemon
