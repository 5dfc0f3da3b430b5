#include "engine/format/tensor_entry.h"

#include <charconv>

namespace mk {
namespace {

bool Skip(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool TakeNumber(std::string_view& text, uint32_t& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc()) return false;
  const auto length = static_cast<size_t>(end - text.data());
  if (length > 1 && text[0] == '0') return false;
  text.remove_prefix(length);
  return true;
}

}  // namespace

std::optional<ExpertName> ParseExpertName(std::string_view name) {
  ExpertName out;
  if (!Skip(name, "layers.") || !TakeNumber(name, out.layer)) return std::nullopt;
  if (!Skip(name, ".block_sparse_moe.experts.") && !Skip(name, ".ffn.experts.")) {
    return std::nullopt;
  }
  if (!TakeNumber(name, out.expert) || !Skip(name, ".w")) return std::nullopt;
  if (name.size() != 1 || name[0] < '1' || name[0] > '3') return std::nullopt;
  out.part = static_cast<ExpertPart>(name[0] - '1');
  return out;
}

std::string DimsText(std::span<const uint32_t> dims) {
  std::string text = "[";
  for (const uint32_t dim : dims) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(dim);
  }
  return text + "]";
}

}  // namespace mk
