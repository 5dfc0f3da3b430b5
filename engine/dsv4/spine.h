// Where the dense weights of a DeepSeek-V4 file go.

#pragma once

#include <cstdint>
#include <memory>

#include "engine/dsv4/shape.h"
#include "engine/dsv4/weights.h"
#include "engine/model/model.h"
#include "engine/spine/spine_builder.h"

namespace mk::dsv4 {

// Version of everything that decides which bytes a prepared spine has: what LayOutSpine asks for,
// what spine_read.cc writes and how PackRows packs it. To be raised when any of that changes.
inline constexpr uint32_t kSpineVersion = 1;

std::unique_ptr<Dsv4Weights> LayOutSpine(SpineBuilder& builder, const Dsv4Shape& shape,
                                         Precision precision);
void LayOutTables(SpineBuilder& builder, const Dsv4Shape& shape, Dsv4Tables& tables);

}  // namespace mk::dsv4
