// Where the dense weights of a K3 file go.

#pragma once

#include <cstdint>
#include <memory>

#include "engine/k3/shape.h"
#include "engine/k3/weights.h"
#include "engine/model/model.h"
#include "engine/spine/spine_builder.h"

namespace mk::k3 {

// Version of everything that decides which bytes a prepared spine has: what LayOutSpine asks for,
// what spine_read.cc writes and how PackRows packs it. To be raised when any of that changes.
inline constexpr uint32_t kSpineVersion = 1;

std::unique_ptr<K3Weights> LayOutSpine(SpineBuilder& builder, const K3Shape& shape,
                                       Precision precision);

}  // namespace mk::k3
