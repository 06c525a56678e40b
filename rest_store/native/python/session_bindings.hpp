// The part of the Python module that is about drafting sessions.
#pragma once

#include <nanobind/nanobind.h>

void bind_sessions(nanobind::module_& module);
