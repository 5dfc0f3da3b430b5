// LoadTokenizer: finding the files of a model's tokenizer and putting them together.

#include <memory>
#include <span>
#include <utility>

#include "engine/base/file.h"
#include "engine/base/strict_json.h"
#include "engine/format/digest.h"
#include "engine/tokenizer/byte_tokenizer.h"
#include "engine/tokenizer/dsv4_chat_assets.h"
#include "engine/tokenizer/dsv4_remap.h"
#include "engine/tokenizer/dsv4_tokenizer.h"
#include "engine/tokenizer/dsv4_vocabulary.h"
#include "engine/tokenizer/kimi_tokenizer.h"
#include "engine/tokenizer/rank_table.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/tokenizer_files.h"
#include "engine/tokenizer/tokenizer_json.h"
#include "engine/tokenizer/vocab_json.h"

namespace mk {
namespace {

constexpr uint64_t kMaxVocabJsonBytes = kMaxTokenizerJsonBytes;
constexpr std::string_view kGiveOne =
    "give a vocabulary with --vocab, or token ids with --ids instead of text";

std::string Sha256Hex(std::string_view bytes) {
  Sha256Digest digest;
  digest.Update(std::as_bytes(std::span(bytes)));
  return digest.FinishHex();
}

enum class JsonKind { kKimiVocab, kDsv4Remap, kTokenizerJson };

// What a JSON file is, by its keys; what is none of them is for the reader of Kimi vocabularies to
// refuse.
JsonKind KindOf(std::string_view text, const std::string& what) {
  const Result<nlohmann::json> json = ParseStrictJson(text, what);
  if (!json || !json->is_object() || json->contains("nano_to_kimi")) return JsonKind::kKimiVocab;
  if (json->contains("nano_to_ds")) return JsonKind::kDsv4Remap;
  return json->contains("model") ? JsonKind::kTokenizerJson : JsonKind::kKimiVocab;
}

// Rank files are base64 and digits.
bool LooksLikeJson(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{';
}

// One of them, or none.
struct AnyVocab {
  std::unique_ptr<VocabJson> kimi;
  std::unique_ptr<Dsv4Remap> remap;
  std::unique_ptr<Dsv4Vocabulary> whole;
};

class Loader {
 public:
  explicit Loader(const TokenizerSources& sources) : s_(sources) {}

  Result<LoadedTokenizer> Load() {
    Result<AnyVocab> vocab = FindVocab();
    if (!vocab) return Fail(vocab.error());
    if (vocab->kimi) return With(*vocab->kimi);
    if (vocab->remap) return With(*vocab->remap);
    if (vocab->whole) return With(*vocab->whole);
    for (auto source : {&Loader::FullVocabulary, &Loader::TokenizerJsonBeside, &Loader::Bytes}) {
      Result<std::shared_ptr<const Tokenizer>> made = (this->*source)();
      if (!made) return Fail(made.error());
      if (*made) return Finish(std::move(*made));
    }
    return NothingFound();
  }

 private:
  // The vocabulary JSON to use, if there is one.
  Result<AnyVocab> FindVocab() {
    if (!s_.vocab_path.empty()) {
      Result<AnyVocab> vocab = ReadVocab(s_.vocab_path);
      if (vocab) out_.vocab_path = s_.vocab_path;
      return vocab;
    }
    if (s_.model_path.empty()) return AnyVocab();
    const std::string folder = FolderOf(s_.model_path);
    for (const std::string& name : {StemOf(s_.model_path, ".bin") + ".vocab.json",
                                    std::string("vocab.json"), std::string("vocab_ds_nano.json")}) {
      const std::string path = JoinPath(folder, name);
      if (!FileIsThere(path)) continue;
      Result<AnyVocab> vocab = ReadVocab(path);
      if (vocab) {
        out_.vocab_path = path;
        return vocab;
      }
      out_.warnings.push_back("left aside: " + vocab.error().message);
    }
    return AnyVocab();
  }

  Result<AnyVocab> ReadVocab(const std::string& path) const {
    Result<std::string> text = ReadWholeFile(path, kMaxVocabJsonBytes);
    if (!text) return Fail(text.error());
    AnyVocab out;
    Status status;
    switch (KindOf(*text, path)) {
      case JsonKind::kKimiVocab:
        status = Take(ParseVocabJson(*text, path), out.kimi);
        if (status) status = CheckSize(out.kimi->vocab_size, path);
        break;
      case JsonKind::kDsv4Remap:
        status = Take(ParseDsv4Remap(*text, path), out.remap);
        if (status) status = CheckSize(out.remap->vocab_size, path);
        break;
      case JsonKind::kTokenizerJson:
        status = Take(WholeVocabulary(*text, path), out.whole);
        break;
    }
    if (!status) return Fail(status.error());
    return out;
  }

  template <typename Vocab>
  static Status Take(Result<Vocab> read, std::unique_ptr<Vocab>& out) {
    if (!read) return Fail(read.error());
    out = std::make_unique<Vocab>(std::move(*read));
    return {};
  }

  Status CheckSize(size_t size, const std::string& path) const {
    if (size == s_.model_vocab) return {};
    return Fail(ErrorCode::kIncompatible,
                path + " is a vocabulary of " + std::to_string(size) + " ids, the model has " +
                    std::to_string(s_.model_vocab),
                "give the vocabulary that belongs to the model");
  }

  // A tokenizer.json, as all of the vocabulary of this model.
  Result<Dsv4Vocabulary> WholeVocabulary(std::string_view text, const std::string& path) const {
    Result<TokenizerJson> json = ParseTokenizerJson(text, path);
    if (!json) return Fail(json.error());
    if (Status status = CheckSize(json->tokens.size(), path); !status) return Fail(status.error());
    return Dsv4Vocabulary(std::move(*json));
  }

  Result<LoadedTokenizer> With(const VocabJson& vocab) {
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

  Result<LoadedTokenizer> With(const Dsv4Remap& remap) {
    out_.rank_path =
        !s_.rank_path.empty() ? s_.rank_path : FindTokenizerJson(out_.vocab_path, s_.model_path);
    if (out_.rank_path.empty()) {
      return Fail(ErrorCode::kNotFound, "no tokenizer.json for the vocabulary " + out_.vocab_path,
                  "put its tokenizer.json beside it, or use --ids");
    }
    Result<std::string> text = ReadWholeFile(out_.rank_path, kMaxTokenizerJsonBytes);
    if (!text) return Fail(text.error());
    Result<TokenizerJson> json = ParseTokenizerJson(*text, out_.rank_path);
    if (!json) return Fail(json.error());
    return Finish(MakeDsv4RemapTokenizer(Dsv4Vocabulary(std::move(*json)), remap, out_.rank_path));
  }

  Result<LoadedTokenizer> With(Dsv4Vocabulary& whole) {
    return Finish(MakeWhole(std::move(whole), out_.vocab_path));
  }

  Result<std::shared_ptr<const Tokenizer>> MakeWhole(Dsv4Vocabulary whole,
                                                     const std::string& path) const {
    Dsv4ChatAssets assets;
    if (const std::string found = FindChatAssets(path); !found.empty()) {
      Result<std::string> text = ReadWholeFile(found, kMaxChatAssetBytes);
      if (!text) return Fail(text.error());
      Result<Dsv4ChatAssets> read = ParseDsv4ChatAssets(*text, found);
      if (!read) return Fail(read.error());
      assets = std::move(*read);
    }
    return MakeDsv4Tokenizer(std::move(whole), path, std::move(assets));
  }

  // Rank file of a vocabulary: named by the user, by the vocabulary, or found; "" = none.
  std::string RankPathFor(const VocabJson& vocab) const {
    if (!s_.rank_path.empty()) return s_.rank_path;
    if (!vocab.base.empty()) return JoinPath(FolderOf(out_.vocab_path), vocab.base);
    return FindRankFile(out_.vocab_path, s_.model_path);
  }

  // The named file alone; without one the full Kimi vocabulary, null when no rank file of its size
  // lies beside the model.
  Result<std::shared_ptr<const Tokenizer>> FullVocabulary() {
    const bool named = !s_.rank_path.empty();
    const bool kimi = s_.model_vocab == static_cast<size_t>(kKimiVocab);
    const std::string path = named  ? s_.rank_path
                             : kimi ? FindRankFile({}, s_.model_path)
                                    : std::string();
    if (path.empty()) return std::shared_ptr<const Tokenizer>();
    Result<std::string> text = ReadWholeFile(path, kMaxRankFileBytes);
    if (named && text && LooksLikeJson(*text)) return FromTokenizerJson(*text, path);
    if (!kimi) {
      if (!text) return Fail(text.error());
      return Fail(ErrorCode::kIncompatible,
                  path + " alone is a vocabulary of 163840 ids, the model has " +
                      std::to_string(s_.model_vocab),
                  "give the vocabulary JSON of the model too, with --vocab");
    }
    Result<RankTable> ranks = text ? RankTable::Parse(*text, path, kKimiRanks) : Fail(text.error());
    if (ranks) {
      out_.rank_path = path;
      return MakeFullTokenizer(std::move(*ranks));
    }
    if (named) return Fail(ranks.error());
    out_.warnings.push_back("left aside: " + ranks.error().message);
    return std::shared_ptr<const Tokenizer>();
  }

  Result<std::shared_ptr<const Tokenizer>> FromTokenizerJson(std::string_view text,
                                                             const std::string& path) {
    Result<Dsv4Vocabulary> whole = WholeVocabulary(text, path);
    if (!whole) return Fail(whole.error());
    out_.rank_path = path;
    return MakeWhole(std::move(*whole), path);
  }

  // Null when no tokenizer.json of the model's size lies beside the model.
  Result<std::shared_ptr<const Tokenizer>> TokenizerJsonBeside() {
    const std::string path = FindTokenizerJson({}, s_.model_path);
    if (path.empty()) return std::shared_ptr<const Tokenizer>();
    Result<std::string> text = ReadWholeFile(path, kMaxTokenizerJsonBytes);
    Result<Dsv4Vocabulary> whole = text ? WholeVocabulary(*text, path) : Fail(text.error());
    if (whole) {
      out_.rank_path = path;
      return MakeWhole(std::move(*whole), path);
    }
    out_.warnings.push_back("left aside: " + whole.error().message);
    return std::shared_ptr<const Tokenizer>();
  }

  // Null when the model's config does not ask for them.
  Result<std::shared_ptr<const Tokenizer>> Bytes() {
    if (s_.config_label != "bytes") return std::shared_ptr<const Tokenizer>();
    return MakeByteTokenizer(s_.model_vocab);
  }

  Result<LoadedTokenizer> Finish(Result<std::shared_ptr<const Tokenizer>> tokenizer) {
    if (!tokenizer) return Fail(tokenizer.error());
    out_.tokenizer = std::move(*tokenizer);
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
