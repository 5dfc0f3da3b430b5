// What is said about a field that breaks its Rule. All errors are kBadRequest and name the field,
// in the message and as the detail "field".

#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "protocol/error.h"
#include "protocol/field.h"

namespace mk::protocol {

// "context.key", or the key alone when there is no context, as it may be shown.
std::string FieldName(const std::string& context, std::string_view key);

Status WrongType(const std::string& name, std::string_view wanted, std::string_view found);
Status UnknownField(const std::string& context, std::string_view key);
Status DoubledField(const std::string& context, std::string_view key);
Status MissingField(const std::string& context, std::string_view key);
Status TooManyItems(const std::string& name, size_t found, size_t allowed);
// `low` and `high` are the type's own range, for fields whose rule has none.
Status OutOfRange(const std::string& name, double found, const Rule& rule, double low, double high);

Status CheckNumber(double value, const Rule& rule, const std::string& name);
Status CheckText(std::string_view value, const Rule& rule, const std::string& name);

// "0 to 100", "above 0, at most 1", "k3, nano-sft"; empty when everything is allowed.
std::string RangeText(const Rule& rule);

}  // namespace mk::protocol
