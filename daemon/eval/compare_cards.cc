#include "daemon/eval/compare_cards.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

#include "engine/sampling/divergence.h"
#include "eval/verdict.h"

namespace mk::daemon {
namespace {

protocol::PairedDifference ToWire(const eval::PairedResult& result, size_t units) {
  protocol::PairedDifference told;
  told.a = result.a;
  told.b = result.b;
  told.difference = result.difference.estimate;
  told.interval = eval::NameOf(result.difference.method);
  if (result.difference.method != eval::BootstrapInterval::Method::kNone) {
    told.low = result.difference.bounds.low;
    told.high = result.difference.bounds.high;
  }
  told.units = units;
  told.better = result.better;
  told.worse = result.worse;
  told.ties = result.ties;
  told.sign_p = result.sign_p;
  told.detectable = result.detectable;
  told.verdict = result.verdict;
  return told;
}

// Sums over the positions of each document.
struct DocumentSums {
  std::vector<double> top1;
  std::vector<double> top5;
  std::vector<double> kl;
  std::vector<double> positions;
};

protocol::PositionMean MeanOf(std::string_view measure, const std::vector<double>& sums,
                              const std::vector<double>& positions,
                              eval::BootstrapOptions options) {
  options.seed = eval::SeedFor(options.seed, measure);
  const eval::BootstrapInterval interval = eval::Bootstrap(sums, positions, options);
  protocol::PositionMean told{interval.estimate, {}, {}};
  if (interval.method == eval::BootstrapInterval::Method::kNone) return told;
  told.low = interval.bounds.low;
  told.high = interval.bounds.high;
  return told;
}

// Of sorted values, the smallest that a share of them does not exceed.
double Quantile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  const double place = std::ceil(share * static_cast<double>(sorted.size())) - 1;
  return sorted[static_cast<size_t>(std::max(place, 0.0))];
}

template <typename... T>
std::string Format(const char* format, T... values) {
  std::array<char, 192> text;
  std::snprintf(text.data(), text.size(), format, values...);
  return text.data();
}

// "B is worse than A in bits per byte on fables: +0.2400 [+0.1200, +0.3300] (95 % bca, 24
// documents; such a test would show a difference of 0.0500)"
std::string Sentence(const protocol::PairedDifference& difference, const std::string& what,
                     const char* units, double scale, int decimals) {
  const auto signed_ = [&](double value) { return Format("%+.*f", decimals, scale * value); };
  std::string text;
  if (difference.verdict == "better" || difference.verdict == "worse") {
    text = "B is " + difference.verdict + " than A in " + what;
  } else if (difference.verdict == "equivalent") {
    text = "B is equivalent to A in " + what;
  } else if (difference.low) {
    text = "no difference is shown in " + what;
  } else {
    text = "too few " + std::string(units) + " to tell " + what + " apart";
  }
  const std::string count = std::to_string(difference.units) + " " + units;
  text += ": " + signed_(difference.difference);
  if (!difference.low || !difference.high) return text + " (" + count + ")";
  return text + " [" + signed_(*difference.low) + ", " + signed_(*difference.high) + "] (95 % " +
         difference.interval + ", " + count + "; such a test would show a difference of " +
         Format("%.*f", decimals, scale * difference.detectable) + ")";
}

}  // namespace

std::string WhyUnlike(const EvalModel& a, const EvalModel& b) {
  const Tokenizer* first = a.loaded().tokenizer.get();
  const Tokenizer* second = b.loaded().tokenizer.get();
  if (first == nullptr || second == nullptr) return "a model has no tokenizer";
  const size_t vocab = a.model().info().vocab;
  if (vocab != b.model().info().vocab) {
    return "the vocabularies differ: " + std::to_string(vocab) + " and " +
           std::to_string(b.model().info().vocab) + " tokens";
  }
  for (size_t i = 0; i < vocab; ++i) {
    const auto id = static_cast<int32_t>(i);
    if (first->TokenBytes(id) == second->TokenBytes(id)) continue;
    return "the vocabularies differ, in token " + std::to_string(i) + " for example";
  }
  return {};
}

protocol::ComparedText CompareText(const EvalText& text, const TextOfBoth& both,
                                   const EvalWork& work, const eval::BootstrapOptions& options) {
  protocol::ComparedText told;
  told.name = text.file.name;
  told.sha256 = text.sha256;
  told.a = CardOf(text, both.a, work, 0);
  told.b = CardOf(text, both.b, work, both.paired ? 1 : 0);
  std::vector<double> a;
  std::vector<double> b;
  std::vector<double> bytes;
  for (size_t i = 0; i < both.a.size(); ++i) {
    const eval::Document& document = text.file.documents[i];
    // The first token of a text may be scored by one of them only: each has its own denominator,
    // and what is compared are bits per byte of the whole document.
    const auto size = static_cast<double>(document.text.size());
    const DocumentScore of_a = ScoreDocument(both.a[i], work, 0);
    const DocumentScore of_b = ScoreDocument(both.b[i], work, both.paired ? 1 : 0);
    if (of_a.bytes == 0 || of_b.bytes == 0) continue;
    bytes.push_back(size);
    a.push_back(of_a.bits * size / static_cast<double>(of_a.bytes));
    b.push_back(of_b.bits * size / static_cast<double>(of_b.bytes));
    told.documents.push_back({document.id, document.text.size(), a.back(), b.back()});
  }
  const std::string measure = "bits_per_byte/" + told.name;
  told.bits_per_byte =
      ToWire(eval::Compare({measure, a, b, bytes, true, eval::kBitsMargin}, options), a.size());
  return told;
}

protocol::ComparedTask CompareTask(const EvalTask& task, size_t a, size_t b, const EvalWork& work,
                                   const eval::BootstrapOptions& options) {
  protocol::ComparedTask told;
  told.name = task.task.name;
  told.sha256 = task.sha256;
  told.a = CardOf(task, a, work);
  told.b = CardOf(task, b, work);
  std::vector<double> of_a;
  std::vector<double> of_b;
  for (const protocol::ProbeOutcome& one : told.a.outcomes) of_a.push_back(one.score);
  for (const protocol::ProbeOutcome& one : told.b.outcomes) of_b.push_back(one.score);
  const std::vector<double> weights(of_a.size(), 1.0);
  const std::string measure = "accuracy/" + told.name;
  told.accuracy =
      ToWire(eval::Compare({measure, of_a, of_b, weights, false, eval::kAccuracyMargin}, options),
             of_a.size());
  return told;
}

protocol::Fidelity FidelityOf(const std::vector<TextOfBoth>& texts, const EvalWork& work,
                              const eval::BootstrapOptions& options) {
  DocumentSums sums;
  std::vector<double> all;
  std::vector<double> overlap;
  for (const TextOfBoth& text : texts) {
    for (const DocumentUnits& document : text.a) {
      double kl = 0;
      double same = 0;
      double shared = 0;
      double positions = 0;
      for (size_t i = document.first; i < document.first + document.count; ++i) {
        const UnitPair pair = PairOf(work.of(i));
        for (const double one : pair.kl) kl += one;
        all.insert(all.end(), pair.kl.begin(), pair.kl.end());
        same += static_cast<double>(pair.same_top);
        shared += static_cast<double>(pair.shared_top) / static_cast<double>(kTopTokens);
        positions += static_cast<double>(pair.kl.size());
        overlap.resize(std::max(overlap.size(), pair.overlap.size()));
        for (size_t l = 0; l < pair.overlap.size(); ++l) overlap[l] += pair.overlap[l];
      }
      if (positions == 0) continue;
      sums.kl.push_back(kl);
      sums.top1.push_back(same);
      sums.top5.push_back(shared);
      sums.positions.push_back(positions);
    }
  }
  std::sort(all.begin(), all.end());
  protocol::Fidelity told;
  told.positions = all.size();
  told.top1 = MeanOf("top1", sums.top1, sums.positions, options);
  told.top5 = MeanOf("top5", sums.top5, sums.positions, options);
  told.kl = MeanOf("kl", sums.kl, sums.positions, options);
  told.kl_median = Quantile(all, 0.5);
  told.kl_p95 = Quantile(all, 0.95);
  told.kl_p99 = Quantile(all, 0.99);
  told.kl_max = all.empty() ? 0 : all.back();
  for (size_t l = 0; l < overlap.size(); ++l) {
    if (std::isnan(overlap[l])) continue;
    told.routers.push_back(
        {static_cast<uint32_t>(l), overlap[l] / static_cast<double>(all.size())});
  }
  return told;
}

std::vector<std::string> VerdictOf(const protocol::CompareDone& done) {
  std::vector<std::string> verdict;
  for (const protocol::ComparedText& text : done.texts) {
    verdict.push_back(
        Sentence(text.bits_per_byte, "bits per byte on " + text.name, "documents", 1, 4));
  }
  for (const protocol::ComparedTask& task : done.tasks) {
    verdict.push_back(
        Sentence(task.accuracy, "accuracy on " + task.name + ", in points", "probes", 100, 1));
  }
  if (!done.fidelity) {
    if (!done.no_fidelity.empty())
      verdict.push_back("next tokens are not compared: " + done.no_fidelity);
    return verdict;
  }
  const protocol::Fidelity& fidelity = *done.fidelity;
  verdict.push_back(
      Format("B has the likeliest token of A at %.2f %% of %llu positions, and is %.3g nats "
             "(KL) away from it on average",
             100 * fidelity.top1.mean, static_cast<unsigned long long>(fidelity.positions),
             fidelity.kl.mean));
  return verdict;
}

}  // namespace mk::daemon
