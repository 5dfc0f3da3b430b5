// How far the lossy precisions are from exact, on text that a model knows:
//   precision_quality [MODEL [TEXT]]
// TEXT holds documents, each behind a line "<|endoftext|>" but the first. Without it the model
// writes the documents itself, at temperature 0.7, in the exact mode. Default model: the bundled
// one.
//
// Every token of a document (at most 256 of each) is predicted from the ones before it, in every
// precision, and the distributions are compared with those of exact: mean of KL(exact || other) in
// nats, share of positions with the same most likely token, and perplexity.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/executor.h"
#include "engine/model/model.h"
#include "engine/tokenizer/tokenizer.h"

namespace mk {
namespace {

constexpr size_t kMostTokens = 256;  // of a document
constexpr double kTemperature = 0.7;
constexpr size_t kMostDocuments = 200;
constexpr std::string_view kSeparator = "<|endoftext|>";

template <typename T>
T Must(Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "%s\n", result.error().ToString().c_str());
    std::exit(1);
  }
  return std::move(*result);
}

// log-probabilities of [rows][vocab] logits, in f64.
std::vector<double> LogSoftmax(const std::vector<float>& logits, size_t vocab) {
  std::vector<double> out(logits.begin(), logits.end());
  for (auto row = out.begin(); row != out.end(); row += static_cast<std::ptrdiff_t>(vocab)) {
    const auto end = row + static_cast<std::ptrdiff_t>(vocab);
    const double max = *std::max_element(row, end);
    double sum = 0;
    std::for_each(row, end, [&](double v) { sum += std::exp(v - max); });
    const double log_sum = max + std::log(sum);
    std::for_each(row, end, [&](double& v) { v -= log_sum; });
  }
  return out;
}

struct Comparison {
  double kl = 0;
  double same_top = 0;
  double loss = 0;
  size_t positions = 0;
  size_t predicted = 0;
};

void Compare(const std::vector<double>& exact, const std::vector<double>& other, size_t vocab,
             std::span<const int32_t> tokens, Comparison& sum) {
  for (size_t t = 0; t < tokens.size(); ++t) {
    const double* p = &exact[t * vocab];
    const double* q = &other[t * vocab];
    for (size_t v = 0; v < vocab; ++v) sum.kl += std::exp(p[v]) * (p[v] - q[v]);
    sum.same_top += std::max_element(p, p + vocab) - p == std::max_element(q, q + vocab) - q;
    ++sum.positions;
    if (t + 1 == tokens.size()) continue;
    sum.loss -= q[tokens[t + 1]];
    ++sum.predicted;
  }
}

using Document = std::vector<int32_t>;

// Logits of every token, in a precision.
std::vector<float> Logits(const Model& model, Executor& executor, Precision precision,
                          std::span<const int32_t> tokens) {
  SequenceOptions options;
  options.precision = precision;
  const auto sequence = Must(model.NewSequence(options));
  std::vector<float> logits(tokens.size() * model.info().vocab);
  ForwardItem item{sequence.get(), tokens, LogitsWanted::kAll, logits};
  if (Status done = model.Forward(executor, {&item, 1}); !done) {
    std::fprintf(stderr, "%s\n", done.error().ToString().c_str());
    std::exit(1);
  }
  return logits;
}

std::vector<Document> ReadDocuments(const std::string& path, const Tokenizer& tokenizer) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) {
    std::fprintf(stderr, "%s cannot be read\n", path.c_str());
    std::exit(1);
  }
  const std::string text((std::istreambuf_iterator<char>(stream)), {});
  std::vector<Document> documents;
  size_t begin = 0;
  while (begin < text.size() && documents.size() < kMostDocuments) {
    const size_t end = std::min(text.find(kSeparator, begin), text.size());
    std::string_view document(text.data() + begin, end - begin);
    while (!document.empty() && document.front() == '\n') document.remove_prefix(1);
    Document ids = Must(tokenizer.EncodePrompt(document)).ids;
    if (ids.size() > kMostTokens) ids.resize(kMostTokens);
    if (ids.size() > 1) documents.push_back(std::move(ids));
    begin = end + kSeparator.size();
  }
  return documents;
}

// What the model writes by itself.
std::vector<Document> WriteDocuments(const Model& model, Executor& executor,
                                     const Tokenizer& tokenizer) {
  const Document prompt = Must(tokenizer.EncodePrompt("Once upon a time")).ids;
  const std::span<const int32_t> stops = tokenizer.prompt_stop_ids();
  std::mt19937 random(1);
  std::vector<float> logits(model.info().vocab);
  std::vector<Document> documents(100, prompt);
  for (Document& document : documents) {
    const auto sequence = Must(model.NewSequence({}));
    std::span<const int32_t> fed = document;
    while (document.size() < kMostTokens) {
      ForwardItem item{sequence.get(), fed, LogitsWanted::kLast, logits};
      if (!model.Forward(executor, {&item, 1})) std::exit(1);
      const std::vector<double> p = LogSoftmax(logits, logits.size());
      std::vector<double> weights(p.size());
      std::transform(p.begin(), p.end(), weights.begin(),
                     [](double v) { return std::exp(v / kTemperature); });
      std::discrete_distribution<int32_t> draw(weights.begin(), weights.end());
      const int32_t next = draw(random);
      if (std::find(stops.begin(), stops.end(), next) != stops.end()) break;
      document.push_back(next);
      fed = std::span(document).last(1);
    }
  }
  return documents;
}

int Run(const std::string& path, const std::string& text_path) {
  LoadOptions options;
  options.threads = 2;
  const auto model = Must(LoadModel(path, options));
  TokenizerSources sources;
  sources.model_path = path;
  sources.model_vocab = model->info().vocab;
  const LoadedTokenizer tokenizer = Must(LoadTokenizer(sources));
  const auto executor = Must(Executor::Create(2));
  const std::vector<Document> documents =
      text_path.empty() ? WriteDocuments(*model, *executor, *tokenizer.tokenizer)
                        : ReadDocuments(text_path, *tokenizer.tokenizer);
  const size_t vocab = model->info().vocab;
  std::vector<Comparison> results(kPrecisions);
  for (const Document& tokens : documents) {
    std::vector<double> exact;
    for (size_t p = 0; p < kPrecisions; ++p) {
      const auto precision = static_cast<Precision>(p);
      if (Status ready = model->Prepare(precision, options); !ready) return 1;
      const std::vector<double> log_probabilities =
          LogSoftmax(Logits(*model, *executor, precision, tokens), vocab);
      if (p == 0) exact = log_probabilities;
      Compare(exact, log_probabilities, vocab, tokens, results[p]);
    }
  }
  std::printf("%s, %zu documents, %zu tokens, %s\n", path.c_str(), documents.size(),
              results[0].positions,
              text_path.empty() ? "written by the model at temperature 0.7" : text_path.c_str());
  std::printf("%-6s %12s %10s %12s %10s\n", "", "KL (nats)", "top-1", "perplexity", "change");
  const double base = std::exp(results[0].loss / static_cast<double>(results[0].predicted));
  for (size_t p = 0; p < kPrecisions; ++p) {
    const Comparison& r = results[p];
    const auto positions = static_cast<double>(r.positions);
    const double perplexity = std::exp(r.loss / static_cast<double>(r.predicted));
    std::printf("%-6s %12.2e %9.2f%% %12.4f %+9.3f%%\n",
                std::string(PrecisionName(static_cast<Precision>(p))).c_str(), r.kl / positions,
                100 * r.same_top / positions, perplexity, 100 * (perplexity / base - 1));
  }
  return 0;
}

}  // namespace
}  // namespace mk

int main(int argc, char** argv) {
  const std::string models = std::string(MK_SOURCE_DIR) + "/models/";
  return mk::Run(argc > 1 ? argv[1] : models + "story-k3.bin", argc > 2 ? argv[2] : "");
}
