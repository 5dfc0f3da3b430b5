#include "client/bench_result.h"

#include <array>
#include <cstdio>
#include <string_view>

#include "client/progress.h"

namespace mk::client {
namespace {

// Enough digits to compare: 0.123, 4.56, 78.9, 1234.
std::string Number(double value) {
  std::array<char, 64> text;
  const char* format = value < 1 ? "%.3f" : value < 10 ? "%.2f" : value < 100 ? "%.1f" : "%.0f";
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

std::string Percent(double share) {
  return Number(100 * share) + " %";
}

std::string Megabytes(uint64_t bytes) {
  return Number(static_cast<double>(bytes) * 1e-6) + " MB";
}

std::string FileName(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

std::string PointName(const protocol::BenchPoint& point) {
  const std::string tokens = std::to_string(point.tokens);
  if (point.kind == "decode") return "decode at context " + tokens;
  if (point.kind == "batch") return "decode, batch of " + std::to_string(point.batch);
  if (point.kind == "prefill") return "prefill of " + tokens;
  if (point.kind == "first_token") return "first token of " + tokens;
  return point.kind + " " + tokens;
}

using Row = std::vector<std::string>;

Row PointRow(const protocol::BenchPoint& point) {
  return {PointName(point),
          Number(point.tokens_per_s),
          Number(point.ms_per_token),
          Number(point.step_ms),
          point.gb_per_s > 0 ? Number(point.gb_per_s) : "-",
          Number(point.gop_per_s),
          Number(point.limit_tokens_per_s),
          point.limit_by,
          Percent(point.share)};
}

const Row& PointHead() {
  static const Row head = {"",        "tok/s", "ms/token", "ms/step",       "GB/s",
                           "GFLOP/s", "limit", "set by",   "share of limit"};
  return head;
}

// First column to the left, the others to the right.
std::string AlignedTable(const std::vector<Row>& rows) {
  std::vector<size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    text += "  ";
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - row[i].size(), ' ');
      text += i == 0 ? row[i] + space : "  " + space + row[i];
    }
    text += "\n";
  }
  return text;
}

std::string MarkdownTable(const std::vector<Row>& rows) {
  std::string text;
  for (size_t r = 0; r < rows.size(); ++r) {
    text += "|";
    for (const std::string& cell : rows[r]) text += " " + cell + " |";
    text += "\n";
    if (r > 0) continue;
    for (size_t i = 0; i < rows[r].size(); ++i) text += i == 0 ? "|---|" : "---:|";
    text += "\n";
  }
  return text;
}

std::string MachineLine(const protocol::BenchDone& done) {
  return (done.processor.empty() ? "unknown processor" : done.processor) + ", " +
         std::to_string(done.processors) + (done.processors == 1 ? " processor" : " processors") +
         ", " + std::to_string(done.threads) + (done.threads == 1 ? " thread" : " threads") +
         ", kernels for " + done.target + ", build " + done.build_id + ", " + done.date;
}

std::string ModelLine(const protocol::BenchDone& done) {
  return FileName(done.model_path) + " (" + done.architecture + ", " +
         Number(static_cast<double>(done.parameters) * 1e-6) + " million parameters)";
}

std::string CeilingsText(const protocol::BenchCeilings& one) {
  return std::to_string(one.threads) + (one.threads == 1 ? " thread" : " threads") + ": read " +
         Number(one.read_gb_per_s) + " GB/s, 24 MiB again and again " +
         Number(one.cache_read_gb_per_s) + " GB/s, f32 multiply-adds " +
         Number(one.fma_gflop_per_s) + " GFLOP/s, int8 dot products " + Number(one.int8_gop_per_s) +
         " GOP/s";
}

std::string RoofText(const protocol::BenchDone& done) {
  const protocol::BenchRoof& roof = done.roof;
  return "L = " + Number(roof.decode_tokens_per_s) + " tok/s: " + Megabytes(roof.spine_bytes) +
         " of spine at " + Number(roof.spine_gb_per_s) + " GB/s and " +
         Megabytes(roof.expert_bytes) + " of experts at " + Number(roof.expert_gb_per_s) +
         " GB/s per token; " + Number(static_cast<double>(roof.multiply_adds) * 1e-6) +
         " million multiply-adds per token, peak " + Number(roof.peak_gop_per_s) +
         (done.precision == "q8" ? " GOP/s" : " GFLOP/s");
}

std::string SeenText(const BenchResult& result) {
  if (!result.seen) return BytesText(result.done.memory_bytes) + " of memory";
  const BenchSeen& seen = *result.seen;
  return "loaded in " + Number(seen.load_ms) + " ms (" + BytesText(result.done.memory_bytes) +
         " of memory); a warm run of " + std::to_string(seen.prompt_tokens) +
         " tokens shows its first token after " + Number(seen.ttft_ms) + " ms, a ping takes " +
         Number(seen.ping_ms) + " ms";
}

std::vector<Row> PointRows(const protocol::BenchDone& done) {
  std::vector<Row> rows = {PointHead()};
  for (const protocol::BenchPoint& point : done.points) rows.push_back(PointRow(point));
  return rows;
}

constexpr std::string_view kMethod[] = {
    "Medians of single steps (a token of every sequence, or a whole prompt) after a warm-up, "
    "random",
    "tokens.",
    "Ceilings are the best of many rounds, measured in the same run before the model: reads of a",
    "set larger than the caches, and independent chains of instructions on registers.",
    "Limit of decode: bytes that a step must touch (weights, states read and written, caches) over "
    "the",
    "bandwidth of reading a set as large as the spine again and again (experts: of streaming "
    "reads,",
    "unless all weights fit into 24 MiB), or useful operations over the peak, whichever is lower. "
    "L "
    "is",
    "that of one sequence without a context. Limit of prefill: operations over the peak, which is "
    "that",
    "of f32 multiply-adds for exact and bf16, of int8 dot products for q8.",
    "GB/s counts the same bytes."};

}  // namespace

std::string BenchText(const std::vector<BenchResult>& results) {
  std::string text;
  for (const BenchResult& result : results) {
    if (text.empty()) text += ModelLine(result.done) + "\n" + MachineLine(result.done) + "\n";
    text += "\n" + result.done.precision + "\n";
    for (const auto& ceilings : result.done.ceilings) text += "  " + CeilingsText(ceilings) + "\n";
    text += "  " + RoofText(result.done) + "\n  " + SeenText(result) + "\n";
    text += AlignedTable(PointRows(result.done));
  }
  text += "\n";
  for (const std::string_view line : kMethod) text += std::string(line) + "\n";
  return text;
}

std::string BenchMarkdown(const std::vector<BenchResult>& results) {
  std::string text;
  for (const BenchResult& result : results) {
    if (text.empty())
      text += "## " + ModelLine(result.done) + "\n\n" + MachineLine(result.done) + "\n";
    text += "\n### " + result.done.precision + "\n\n";
    for (const auto& ceilings : result.done.ceilings) text += "- " + CeilingsText(ceilings) + "\n";
    text += "- " + RoofText(result.done) + "\n- " + SeenText(result) + "\n\n";
    text += MarkdownTable(PointRows(result.done));
  }
  text += "\n";
  for (const std::string_view line : kMethod) text += std::string(line) + "\n";
  return text;
}

Json BenchJson(const std::vector<BenchResult>& results) {
  Json runs = Json::array();
  for (const BenchResult& result : results) {
    Json run = ToJson(result.done);
    if (result.seen) {
      run["load_ms"] = result.seen->load_ms;
      run["ping_ms"] = result.seen->ping_ms;
      run["ttft_ms"] = result.seen->ttft_ms;
      run["ttft_prompt_tokens"] = result.seen->prompt_tokens;
    }
    runs.push_back(std::move(run));
  }
  Json all = Json::object();
  all["results"] = std::move(runs);
  return all;
}

}  // namespace mk::client
