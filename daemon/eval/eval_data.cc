#include "daemon/eval/eval_data.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <utility>

#include "daemon/dirs.h"
#include "daemon/errors.h"
#include "daemon/memory_text.h"
#include "engine/base/file.h"
#include "engine/format/digest.h"

namespace mk::daemon {
namespace {

namespace fs = std::filesystem;

std::string BundledNames() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(BundledEvaluation(), error)) {
    if (entry.path().extension() == ".jsonl") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

protocol::Status Resolve(std::string& file) {
  if (!file.starts_with('/')) {
    const fs::path path = BundledEvaluation() / (file + ".jsonl");
    std::error_code error;
    if (!fs::is_regular_file(path, error)) {
      return protocol::Fail(protocol::ErrorCode::kNotFound,
                            "no bundled task or text \"" + file + "\"",
                            "give the path of a file, or one of: " + BundledNames());
    }
    file = path.string();
  }
  auto opened = OpenForReading(file);
  if (!opened) return protocol::Fail(ToProtocol(opened.error()));
  return {};
}

protocol::Result<std::string> ReadFile(const std::string& path, std::string& sha256) {
  auto bytes = ReadWholeFile(path, eval::kMaxFileBytes);
  if (!bytes) return protocol::Fail(ToProtocol(bytes.error()));
  Sha256Digest digest;
  digest.Update(std::as_bytes(std::span(*bytes)));
  sha256 = digest.FinishHex();
  return std::move(*bytes);
}

}  // namespace

protocol::Status ResolveEvalFiles(protocol::EvalItems& items) {
  for (auto* files : {&items.tasks, &items.texts}) {
    for (std::string& file : *files) {
      if (auto resolved = Resolve(file); !resolved) return resolved;
    }
  }
  return {};
}

protocol::Result<Reservation> ReserveForEvalData(const protocol::EvalItems& items, Ledger& ledger) {
  constexpr uint64_t kPerByte = 16;
  uint64_t bytes = 0;
  for (const auto* files : {&items.tasks, &items.texts}) {
    for (const std::string& file : *files) {
      auto opened = OpenForReading(file);
      if (!opened) return protocol::Fail(ToProtocol(opened.error()));
      bytes += std::min<uint64_t>(opened->identity.size, eval::kMaxFileBytes);
    }
  }
  auto memory = ledger.Reserve(MemoryUse::kSequences, bytes * kPerByte);
  if (memory) return std::move(*memory);
  return protocol::Fail(
      protocol::ErrorCode::kOutOfMemory,
      "tasks and texts of " + BytesText(bytes) + " do not fit into the memory budget",
      "measure them in parts");
}

protocol::Result<EvalData> LoadEvalData(const protocol::EvalItems& items) {
  EvalData data;
  for (const std::string& path : items.tasks) {
    EvalTask& task = data.tasks.emplace_back();
    auto bytes = ReadFile(path, task.sha256);
    if (!bytes) return protocol::Fail(std::move(bytes.error()));
    auto parsed = eval::ParseTask(path, *bytes, items.limit);
    if (!parsed) return protocol::Fail(std::move(parsed.error()));
    task.task = std::move(*parsed);
  }
  for (const std::string& path : items.texts) {
    EvalText& text = data.texts.emplace_back();
    auto bytes = ReadFile(path, text.sha256);
    if (!bytes) return protocol::Fail(std::move(bytes.error()));
    auto parsed = eval::ParseTextFile(path, *bytes);
    if (!parsed) return protocol::Fail(std::move(parsed.error()));
    text.file = std::move(*parsed);
  }
  return data;
}

}  // namespace mk::daemon
