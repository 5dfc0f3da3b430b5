// LoadTokenizer: finding the files of a model's tokenizer and putting them together.

#include <filesystem>
#include <optional>
#include <span>
#include <utility>

#include "engine/base/file.h"
#include "engine/format/digest.h"
#include "engine/tokenizer/byte_tokenizer.h"
#include "engine/tokenizer/kimi_tokenizer.h"
#include "engine/tokenizer/rank_table.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/vocab_json.h"

namespace mk {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxVocabJsonBytes = uint64_t{32} << 20;
constexpr std::string_view kGiveOne =
    "give a vocabulary with --vocab, or token ids with --ids instead of text";

std::string FolderOf(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

std::string Join(const std::string& folder, const std::string& name) {
  return (fs::path(folder) / name).string();
}

bool IsThere(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// "story" of "models/story.bin" and of "models/story.vocab.json".
std::string StemOf(const std::string& path, std::string_view ending) {
  const fs::path name = fs::path(path).filename();
  const std::string text = name.string();
  return text.ends_with(ending) ? text.substr(0, text.size() - ending.size())
                                : name.stem().string();
}

std::string Sha256Hex(std::string_view bytes) {
  Sha256Digest digest;
  digest.Update(std::as_bytes(std::span(bytes)));
  return digest.FinishHex();
}

class Loader {
 public:
  explicit Loader(const TokenizerSources& sources) : s_(sources) {}

  Result<LoadedTokenizer> Load() {
    Result<std::optional<VocabJson>> vocab = FindVocab();
    if (!vocab) return Fail(vocab.error());
    if (*vocab) return WithVocab(**vocab);
    if (!s_.rank_path.empty() || s_.model_vocab == static_cast<size_t>(kKimiVocab)) {
      Result<std::shared_ptr<const Tokenizer>> full = FullVocabulary();
      if (!full) return Fail(full.error());
      if (*full) return Finish(std::move(*full));
    }
    if (s_.config_label == "bytes") {
      Result<std::shared_ptr<const Tokenizer>> bytes = MakeByteTokenizer(s_.model_vocab);
      if (!bytes) return Fail(bytes.error());
      return Finish(std::move(*bytes));
    }
    return NothingFound();
  }

 private:
  // The vocabulary JSON to use, if there is one.
  Result<std::optional<VocabJson>> FindVocab() {
    if (!s_.vocab_path.empty()) {
      Result<VocabJson> vocab = ReadVocab(s_.vocab_path);
      if (!vocab) return Fail(vocab.error());
      out_.vocab_path = s_.vocab_path;
      return std::optional<VocabJson>(std::move(*vocab));
    }
    if (s_.model_path.empty()) return std::optional<VocabJson>();
    const std::string folder = FolderOf(s_.model_path);
    for (const std::string& name :
         {StemOf(s_.model_path, ".bin") + ".vocab.json", std::string("vocab.json")}) {
      const std::string path = Join(folder, name);
      if (!IsThere(path)) continue;
      Result<VocabJson> vocab = ReadVocab(path);
      if (vocab) {
        out_.vocab_path = path;
        return std::optional<VocabJson>(std::move(*vocab));
      }
      out_.warnings.push_back("left aside: " + vocab.error().message);
    }
    return std::optional<VocabJson>();
  }

  Result<VocabJson> ReadVocab(const std::string& path) const {
    Result<std::string> text = ReadWholeFile(path, kMaxVocabJsonBytes);
    if (!text) return Fail(text.error());
    Result<VocabJson> vocab = ParseVocabJson(*text, path);
    if (vocab && vocab->vocab_size != s_.model_vocab) {
      return Fail(ErrorCode::kIncompatible,
                  path + " is a vocabulary of " + std::to_string(vocab->vocab_size) +
                      " ids, the model has " + std::to_string(s_.model_vocab),
                  "give the vocabulary that belongs to the model");
    }
    return vocab;
  }

  Result<LoadedTokenizer> WithVocab(const VocabJson& vocab) {
    out_.rank_path = RankPathFor(vocab);
    if (out_.rank_path.empty()) {
      return Fail(ErrorCode::kNotFound, "no rank file for the vocabulary " + out_.vocab_path,
                  "put its base.tiktoken or tiktoken.model beside it, or use --ids");
    }
    Result<std::string> text = ReadWholeFile(out_.rank_path, kMaxRankFileBytes);
    if (!text) return Fail(text.error());
    if (!vocab.base_sha256.empty() && Sha256Hex(*text) != vocab.base_sha256) {
      return Fail(ErrorCode::kIncompatible,
                  out_.rank_path + " is not the rank file that " + out_.vocab_path +
                      " was made with: its SHA-256 differs",
                  "copy both files again from the same place");
    }
    Result<RankTable> ranks = RankTable::Parse(*text, out_.rank_path);
    if (!ranks) return Fail(ranks.error());
    Result<std::shared_ptr<const Tokenizer>> made =
        MakeVocabTokenizer(std::move(*ranks), vocab, out_.rank_path);
    if (!made) return Fail(made.error());
    return Finish(std::move(*made));
  }

  // Rank file of a vocabulary: named by the user, by the vocabulary, or found; "" = none.
  std::string RankPathFor(const VocabJson& vocab) const {
    if (!s_.rank_path.empty()) return s_.rank_path;
    if (!vocab.base.empty()) return Join(FolderOf(out_.vocab_path), vocab.base);
    return FindRanks();
  }

  // "<stem>.tiktoken", "base.tiktoken" or "tiktoken.model" beside the vocabulary or the model.
  std::string FindRanks() const {
    std::vector<std::string> folders;
    std::vector<std::string> names;
    if (!out_.vocab_path.empty()) folders.push_back(FolderOf(out_.vocab_path));
    if (!s_.model_path.empty()) {
      folders.push_back(FolderOf(s_.model_path));
      names.push_back(StemOf(s_.model_path, ".bin") + ".tiktoken");
    }
    if (!out_.vocab_path.empty()) {
      names.push_back(StemOf(out_.vocab_path, ".vocab.json") + ".tiktoken");
    }
    names.insert(names.end(), {"base.tiktoken", "tiktoken.model"});
    for (const std::string& name : names) {
      for (const std::string& folder : folders) {
        std::string path = Join(folder, name);
        if (IsThere(path)) return path;
      }
    }
    return {};
  }

  // The full Kimi vocabulary; null when no rank file of its size lies beside the model.
  Result<std::shared_ptr<const Tokenizer>> FullVocabulary() {
    const bool named = !s_.rank_path.empty();
    if (s_.model_vocab != static_cast<size_t>(kKimiVocab)) {
      return Fail(ErrorCode::kIncompatible,
                  s_.rank_path + " alone is a vocabulary of 163840 ids, the model has " +
                      std::to_string(s_.model_vocab),
                  "give the vocabulary JSON of the model too, with --vocab");
    }
    const std::string path = named ? s_.rank_path : FindRanks();
    if (path.empty()) return std::shared_ptr<const Tokenizer>();
    Result<RankTable> ranks = ReadFullRanks(path);
    if (ranks) {
      out_.rank_path = path;
      return MakeFullTokenizer(std::move(*ranks));
    }
    if (named) return Fail(ranks.error());
    out_.warnings.push_back("left aside: " + ranks.error().message);
    return std::shared_ptr<const Tokenizer>();
  }

  static Result<RankTable> ReadFullRanks(const std::string& path) {
    Result<std::string> text = ReadWholeFile(path, kMaxRankFileBytes);
    if (!text) return Fail(text.error());
    return RankTable::Parse(*text, path, kKimiRanks);
  }

  Result<LoadedTokenizer> Finish(std::shared_ptr<const Tokenizer> tokenizer) {
    out_.tokenizer = std::move(tokenizer);
    return std::move(out_);
  }

  tl::unexpected<Error> NothingFound() const {
    std::string message = s_.model_path.empty() ? std::string("the model has no tokenizer")
                                                : "no vocabulary found for " + s_.model_path;
    for (const std::string& warning : out_.warnings) message += "; " + warning;
    return Fail(ErrorCode::kNotFound, std::move(message), std::string(kGiveOne));
  }

  const TokenizerSources& s_;
  LoadedTokenizer out_;
};

}  // namespace

Result<LoadedTokenizer> LoadTokenizer(const TokenizerSources& sources) {
  return Loader(sources).Load();
}

}  // namespace mk
