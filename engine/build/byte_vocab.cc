#include "engine/build/byte_vocab.h"

#include <string>

namespace mk {
namespace {

// From this many rows on a vocabulary is the full one of Kimi, with its special ids.
constexpr uint32_t kFullVocab = 163840;
constexpr uint32_t kFirstFullSpecial = 163584;
constexpr uint32_t kMinVocab = 264;
constexpr uint32_t kSpecials = 8;

}  // namespace

nlohmann::ordered_json ByteVocabSpecials(uint32_t vocab) {
  if (vocab >= kFullVocab) {
    return {{"bos", 163584}, {"eos", 163585},        {"open", 163587}, {"close", 163588},
            {"sep", 163589}, {"end_of_msg", 163586}, {"unk", 163838},  {"pad", 163839}};
  }
  const uint32_t first = vocab - kSpecials;
  return {{"bos", first},     {"eos", first + 1},        {"open", first + 2}, {"close", first + 3},
          {"sep", first + 4}, {"end_of_msg", first + 5}, {"unk", first + 6},  {"pad", first + 7}};
}

uint32_t FirstSpecialRow(uint32_t vocab) {
  return vocab >= kFullVocab ? kFirstFullSpecial : vocab - kSpecials;
}

Status CheckByteVocab(uint32_t vocab) {
  if (vocab >= kMinVocab) return {};
  return Fail(ErrorCode::kInvalidArgument,
              "vocab is " + std::to_string(vocab) +
                  ", the byte tokenizer needs 264: 256 bytes and 8 special ids",
              "set vocab to 264 or more");
}

}  // namespace mk
