#include "client/eval_text.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "client/eval_options.h"
#include "client/table.h"

namespace mk::client {
namespace {

using protocol::EvalDone;
using protocol::Proportion;
using protocol::TaskCard;
using protocol::TextCard;

constexpr size_t kLabelColumns = 26;
constexpr size_t kModelColumns = 21;

template <typename... T>
std::string Format(const char* format, T... values) {
  std::array<char, 128> text;
  std::snprintf(text.data(), text.size(), format, values...);
  return text.data();
}

std::string Percent(double share) {
  return Format("%.1f %%", 100 * share);
}

// "27.5 % [19.3, 37.4]"
std::string WithInterval(const Proportion& share) {
  return Format("%.1f %% [%4.1f, %4.1f]", 100 * share.share, 100 * share.low, 100 * share.high);
}

std::string Millions(uint64_t count) {
  return Format("%.1f M", static_cast<double>(count) / 1e6);
}

// Rows of a label and a cell for each model.
class Table {
 public:
  explicit Table(const std::vector<EvalDone>& models) : models_(models) {}

  void Head(const std::string& text) { text_ += "\n" + Printable(text) + "\n"; }

  template <typename Cell>
  void Row(const std::string& label, const Cell& cell) {
    const Painter plain(false);
    TableRow row(plain, 0);
    row.Left(label, kLabelColumns);
    for (const EvalDone& model : models_) row.Right(cell(model), kModelColumns);
    text_ += row.Take() + "\n";
  }

  std::string Take() { return std::move(text_); }

 private:
  const std::vector<EvalDone>& models_;
  std::string text_;
};

void AddModels(Table& table) {
  table.Row("", [](const EvalDone& done) { return ModelLabel(done.model.path); });
  table.Row("architecture", [](const EvalDone& done) { return done.model.architecture; });
  table.Row("parameters", [](const EvalDone& done) { return Millions(done.model.parameters); });
  table.Row("vocabulary", [](const EvalDone& done) { return std::to_string(done.model.vocab); });
  table.Row("precision", [](const EvalDone& done) {
    return done.model.precision + (done.model.degraded ? ", degraded" : "");
  });
}

void AddText(Table& table, const EvalDone& like, size_t i) {
  const auto row = [&](const char* label, auto&& cell) {
    table.Row(label, [&](const EvalDone& done) { return cell(done.texts[i]); });
  };
  const TextCard& text = like.texts[i];
  table.Head(text.name + ": " + std::to_string(text.documents) + " documents, " +
             std::to_string(text.bytes) + " bytes");
  row("  bits per byte", [](const TextCard& t) { return Format("%.4f", t.bits_per_byte); });
  row("  perplexity per byte",
      [](const TextCard& t) { return Format("%.4f", t.perplexity_per_byte); });
  row("  perplexity per token", [](const TextCard& t) { return Format("%.4f", t.perplexity); });
  row("  tokens", [](const TextCard& t) { return std::to_string(t.tokens); });
  row("  token was likeliest", [](const TextCard& t) { return Percent(t.top1.share); });
  row("  among five likeliest", [](const TextCard& t) { return Percent(t.top5.share); });
}

void AddTask(Table& table, const EvalDone& like, size_t i) {
  const auto row = [&](const std::string& label, auto&& cell) {
    table.Row("  " + label, [&](const EvalDone& done) { return cell(done.tasks[i]); });
  };
  const TaskCard& task = like.tasks[i];
  std::string about = task.name + ": " + std::to_string(task.probes) + " probes";
  if (task.phrasings > task.probes) about += " in " + std::to_string(task.phrasings) + " phrasings";
  if (task.chance > 0) about += "; guessing gives " + Percent(task.chance);
  table.Head(about);
  row("accuracy", [](const TaskCard& t) { return WithInterval(t.accuracy); });
  if (task.acc && task.acc_norm) {
    row("acc / acc_norm", [](const TaskCard& t) {
      return Percent(t.acc.value_or(Proportion()).share) + " / " +
             Percent(t.acc_norm.value_or(Proportion()).share);
    });
  }
  for (size_t c = 0; c < task.categories.size(); ++c) {
    row(task.categories[c].name,
        [&](const TaskCard& t) { return WithInterval(t.categories[c].accuracy); });
  }
  for (size_t c = 0; c < task.by_phrasing.size(); ++c) {
    row("phrasing " + task.by_phrasing[c].name,
        [&](const TaskCard& t) { return WithInterval(t.by_phrasing[c].accuracy); });
  }
}

// Answers of one daemon to the same request have the same form; others are of no daemon of ours.
bool Alike(const EvalDone& a, const EvalDone& b) {
  const auto alike = [](const TaskCard& x, const TaskCard& y) {
    return x.sha256 == y.sha256 && x.categories.size() == y.categories.size() &&
           x.by_phrasing.size() == y.by_phrasing.size();
  };
  return a.texts.size() == b.texts.size() &&
         std::equal(a.tasks.begin(), a.tasks.end(), b.tasks.begin(), b.tasks.end(), alike);
}

struct MeasureRow {
  std::string what;
  const protocol::PairedDifference& difference;
  double scale = 1;
  int decimals = 4;
};

std::string Row(const MeasureRow& measure) {
  const protocol::PairedDifference& d = measure.difference;
  const auto number = [&](double value) {
    return Format("%.*f", measure.decimals, measure.scale * value);
  };
  const auto bound = [&](const std::optional<double>& value) {
    return SignedText(value, measure.scale, measure.decimals);
  };
  const Painter plain(false);
  TableRow row(plain, 0);
  row.Left(measure.what, 24).Right(number(d.a), 8).Right(number(d.b), 8);
  row.Right(bound(d.difference), 8);
  row.Right(d.low ? "[" + bound(d.low) + ", " + bound(d.high) + "]" : "-", 18);
  row.Right(Format("%.4f", d.sign_p), 7).Right(number(d.detectable), 7);
  return row.Rest(d.verdict).Take() + "\n";
}

std::string MeasureHead() {
  const Painter plain(false);
  TableRow row(plain, 0);
  row.Left("", 24).Right("A", 8).Right("B", 8).Right("B - A", 8).Right("95 %", 18);
  return row.Right("sign p", 7).Right("shows", 7).Rest("B is").Take() + "\n";
}

std::string MeanText(const protocol::PositionMean& mean, double scale, int decimals,
                     const char* unit) {
  std::string text = Format("%.*f%s", decimals, scale * mean.mean, unit);
  if (!mean.low || !mean.high) return text;
  return text + Format(" [%.*f, %.*f]", decimals, scale * *mean.low, decimals, scale * *mean.high);
}

std::string FidelityText(const protocol::Fidelity& fidelity) {
  std::string text =
      "\nnext tokens at " + std::to_string(fidelity.positions) + " positions of all texts\n";
  text += "  same likeliest token     " + MeanText(fidelity.top1, 100, 2, " %") + "\n";
  text += "  five likeliest shared    " + MeanText(fidelity.top5, 100, 2, " %") + "\n";
  text += "  KL(A to B), nats         " + MeanText(fidelity.kl, 1, 6, "") + "\n";
  text += Format("    median %.6f, p95 %.6f, p99 %.6f, largest %.6f\n", fidelity.kl_median,
                 fidelity.kl_p95, fidelity.kl_p99, fidelity.kl_max);
  if (fidelity.routers.empty()) return text;
  text += "  experts shared, by layer";
  for (const protocol::LayerOverlap& layer : fidelity.routers) {
    text += " " + std::to_string(layer.layer) + ": " + Percent(layer.overlap) +
            (&layer == &fidelity.routers.back() ? "" : ",");
  }
  return text + "\n";
}

}  // namespace

std::string EvalText(const std::vector<EvalDone>& models) {
  Table table(models);
  const EvalDone& first = models.front();
  const bool alike = std::all_of(models.begin(), models.end(),
                                 [&](const EvalDone& done) { return Alike(first, done); });
  if (!alike) return "the models were measured on different texts and tasks\n";
  AddModels(table);
  for (size_t i = 0; i < first.texts.size(); ++i) AddText(table, first, i);
  for (size_t i = 0; i < first.tasks.size(); ++i) AddTask(table, first, i);
  return table.Take();
}

Json EvalJson(const std::vector<EvalDone>& models) {
  return {{"schema", protocol::kEvalSchema}, {"models", ToJson(models)}};
}

std::string SignedText(const std::optional<double>& value, double scale, int decimals) {
  return value ? Format("%+.*f", decimals, scale * *value) : "-";
}

bool IsDegraded(const protocol::JobResult& result) {
  if (result.eval) return result.eval->model.degraded;
  return result.compare && (result.compare->a.degraded || result.compare->b.degraded);
}

std::string NameOf(const protocol::EvaluatedModel& model) {
  return ModelLabel(model.path) + " (" + model.precision + (model.degraded ? ", degraded" : "") +
         ")";
}

std::string CompareText(const protocol::CompareDone& done) {
  std::string text =
      "A  " + Printable(NameOf(done.a)) + "\nB  " + Printable(NameOf(done.b)) + "\n\n";
  text += MeasureHead();
  for (const protocol::ComparedText& one : done.texts) {
    text += Row({one.name + ", bits per byte", one.bits_per_byte, 1, 4});
  }
  for (const protocol::ComparedTask& one : done.tasks) {
    text += Row({one.name + ", % right", one.accuracy, 100, 1});
  }
  if (done.fidelity) text += FidelityText(*done.fidelity);
  text += "\n";
  for (const std::string& sentence : done.verdict) text += Printable(sentence) + "\n";
  return text;
}

Json CompareJson(const protocol::CompareDone& done) {
  Json json = {{"schema", protocol::kCompareSchema}};
  json.update(ToJson(done));
  return json;
}

}  // namespace mk::client
