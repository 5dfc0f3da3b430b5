#include "engine/tokenizer/tokenizer_files.h"

#include <filesystem>
#include <system_error>

namespace mk {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kModelEnding = ".bin";
constexpr std::string_view kVocabEnding = ".vocab.json";
constexpr std::string_view kTokenizerJson = "tokenizer.json";

// "<stem><ending>" of the model and of the vocabulary, then `usual`, beside either of them.
std::string FindCompanion(const std::string& vocab_path, const std::string& model_path,
                          const std::string& ending, const std::vector<std::string>& usual) {
  std::vector<std::string> folders;
  std::vector<std::string> names;
  if (!vocab_path.empty()) folders.push_back(FolderOf(vocab_path));
  if (!model_path.empty()) {
    folders.push_back(FolderOf(model_path));
    names.push_back(StemOf(model_path, kModelEnding) + ending);
  }
  if (!vocab_path.empty()) names.push_back(StemOf(vocab_path, kVocabEnding) + ending);
  names.insert(names.end(), usual.begin(), usual.end());
  return FirstOf(names, folders);
}

}  // namespace

std::string FolderOf(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

std::string StemOf(const std::string& path, std::string_view ending) {
  const fs::path name = fs::path(path).filename();
  const std::string text = name.string();
  return text.ends_with(ending) ? text.substr(0, text.size() - ending.size())
                                : name.stem().string();
}

std::string JoinPath(const std::string& folder, const std::string& name) {
  return (fs::path(folder) / name).string();
}

bool FileIsThere(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::string FirstOf(const std::vector<std::string>& names,
                    const std::vector<std::string>& folders) {
  for (const std::string& name : names) {
    for (const std::string& folder : folders) {
      std::string path = JoinPath(folder, name);
      if (FileIsThere(path)) return path;
    }
  }
  return {};
}

std::string FindRankFile(const std::string& vocab_path, const std::string& model_path) {
  return FindCompanion(vocab_path, model_path, ".tiktoken", {"base.tiktoken", "tiktoken.model"});
}

std::string FindTokenizerJson(const std::string& vocab_path, const std::string& model_path) {
  return FindCompanion(vocab_path, model_path, ".tokenizer.json",
                       {"tokenizer.json", "microdeepseek.tokenizer.json"});
}

std::string FindChatAssets(const std::string& tokenizer_json) {
  const std::string name = fs::path(tokenizer_json).filename().string();
  if (!name.ends_with(kTokenizerJson)) return {};
  const std::string start = name.substr(0, name.size() - kTokenizerJson.size());
  return FirstOf({start + "chat.json"}, {FolderOf(tokenizer_json)});
}

}  // namespace mk
