// The fields of the answers of pck_info and pck_clean. Included by reply_fields.h.

#pragma once

#include "protocol/field.h"
#include "protocol/prefix_messages.h"

namespace mk::protocol {

template <>
struct Schema<PrefixStatus> {
  static constexpr auto fields = std::make_tuple(
      Required("tokens", &PrefixStatus::tokens), Required("precision", &PrefixStatus::precision),
      Required("chunked_prefill", &PrefixStatus::chunked_prefill),
      Required("logits", &PrefixStatus::logits),
      Required("memory_bytes", &PrefixStatus::memory_bytes),
      Required("own_bytes", &PrefixStatus::own_bytes),
      Required("disk_bytes", &PrefixStatus::disk_bytes), Required("value", &PrefixStatus::value));
};

template <>
struct Schema<PrefixModel> {
  static constexpr auto fields = std::make_tuple(
      Required("model", &PrefixModel::model), Required("fingerprint", &PrefixModel::fingerprint),
      Required("loaded", &PrefixModel::loaded),
      Required("memory_states", &PrefixModel::memory_states),
      Required("disk_files", &PrefixModel::disk_files),
      Required("disk_bytes", &PrefixModel::disk_bytes),
      Required("refused_files", &PrefixModel::refused_files),
      Required("states", &PrefixModel::states));
};

template <>
struct Schema<PckInfoDone> {
  static constexpr auto fields = std::make_tuple(
      Required("models", &PckInfoDone::models), Required("folder", &PckInfoDone::folder),
      Required("trouble", &PckInfoDone::trouble), Required("totals", &PckInfoDone::totals));
};

template <>
struct Schema<PckCleanDone> {
  static constexpr auto fields = std::make_tuple(
      Required("states", &PckCleanDone::states), Required("bytes", &PckCleanDone::bytes),
      Required("files", &PckCleanDone::files), Required("file_bytes", &PckCleanDone::file_bytes));
};

}  // namespace mk::protocol
