#include "client/eval_options.h"

#include <filesystem>

namespace mk::client {
namespace {

// A path when it has a '/' or an ending, else the name of a bundled file.
std::string FileArgument(const std::string& text) {
  return text.find_first_of("/.") == std::string::npos ? text : AbsolutePath(text);
}

}  // namespace

void EvalOptions::Add(CommandLine& line) {
  line.AddRepeated("--task", items_.tasks,
                   "Questions with answers, one JSON object per line: a file, or facts or stories "
                   "(default: both, and the text fables)")
      ->type_name("FILE");
  line.AddRepeated("--text", items_.texts,
                   "Text to measure perplexity on: a file, or fables; .jsonl files have a document "
                   "per line")
      ->type_name("FILE");
  line.AddNumber("--limit", limit_, "Of each task only so many probes, from the first", 1,
                 UINT32_MAX);
  line.AddStream(stream_);
  line.app().add_flag("--no-chunked-prefill", no_chunked_prefill_,
                      "Read texts token by token instead of in blocks of 64");
}

protocol::EvalItems EvalOptions::Take() const {
  protocol::EvalItems items = items_;
  for (auto* files : {&items.tasks, &items.texts}) {
    for (std::string& file : *files) file = FileArgument(file);
  }
  if (items.tasks.empty() && items.texts.empty()) {
    items.tasks = {"facts", "stories"};
    items.texts = {"fables"};
  }
  items.limit = static_cast<uint32_t>(limit_);
  items.chunked_prefill = !no_chunked_prefill_;
  items.stream = stream_.stream;
  items.stream_memory = stream_.stream_memory;
  return items;
}

std::string ModelLabel(const std::string& path) {
  return std::filesystem::path(path).stem().string();
}

}  // namespace mk::client
