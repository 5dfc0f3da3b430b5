#include "protocol/message_object.h"

#include <exception>
#include <new>
#include <string>

#include "protocol/limits.h"
#include "protocol/scan.h"

namespace mk::protocol {
namespace {

// Text and binaries stay where they are, in the message.
bool Reference(msgpack::type::object_type, size_t, void*) {
  return true;
}

// Scan() has seen to these already; the parser is told as well.
msgpack::unpack_limit UnpackLimit() {
  return msgpack::unpack_limit(kLimits.array_items, kLimits.map_entries, kLimits.text_bytes,
                               kLimits.binary_bytes, 0, kLimits.depth);
}

}  // namespace

Result<msgpack::object_handle> UnpackMessage(std::string_view bytes, uint64_t* id) {
  if (Status status = Scan(bytes, kLimits, id); !status) return Fail(status.error());
  try {
    bool referenced = false;
    msgpack::object_handle handle =
        msgpack::unpack(bytes.data(), bytes.size(), referenced, &Reference, nullptr, UnpackLimit());
    if (handle->type != msgpack::type::MAP) {
      return Fail(ErrorCode::kBadRequest, "message refused: it is not a map",
                  "a message is one msgpack map");
    }
    return handle;
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kOutOfMemory, "no memory to read the message",
                "end other programs, or send a shorter prompt");
  } catch (const std::exception& error) {
    return Fail(ErrorCode::kBadRequest, std::string("message refused: ") + error.what());
  }
}

const msgpack::object* FindKey(const msgpack::object& map, std::string_view key) {
  if (map.type != msgpack::type::MAP) return nullptr;
  for (uint32_t i = 0; i < map.via.map.size; ++i) {
    const msgpack::object_kv& entry = map.via.map.ptr[i];
    if (std::string_view(entry.key.via.str.ptr, entry.key.via.str.size) == key) return &entry.val;
  }
  return nullptr;
}

}  // namespace mk::protocol
