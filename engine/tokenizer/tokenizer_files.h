// Where the files of a tokenizer lie: names beside a model or a vocabulary.

#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mk {

// "." for a bare file name.
std::string FolderOf(const std::string& path);
// "story" of "models/story.bin" with the ending ".bin", of any other name what is before its last
// dot.
std::string StemOf(const std::string& path, std::string_view ending);
std::string JoinPath(const std::string& folder, const std::string& name);
bool FileIsThere(const std::string& path);

// The first of `names` that is in one of `folders`, names before folders; "" when none is.
std::string FirstOf(const std::vector<std::string>& names, const std::vector<std::string>& folders);

// Tiktoken rank file or tokenizer.json for a vocabulary and a model; either path may be empty. ""
// when there is none.
std::string FindRankFile(const std::string& vocab_path, const std::string& model_path);
std::string FindTokenizerJson(const std::string& vocab_path, const std::string& model_path);
// Chat assets of a tokenizer.json; "" when there are none.
std::string FindChatAssets(const std::string& tokenizer_json);

}  // namespace mk
