# The target MkLibedit: libedit, which edits the lines of `mk chat`.
#
# Linked statically where its archives are: a shared libedit brings three more objects, which cost
# every call of mk more time to start than the rest of the program does.

find_path(MK_LIBEDIT_INCLUDE histedit.h REQUIRED)
set(archives libedit.a libtinfo.a libbsd.a libmd.a)
set(found TRUE)
set(MK_LIBEDIT_ARCHIVES)
foreach(archive ${archives})
  string(REPLACE "." "_" name "MK_${archive}")
  find_library(${name} ${archive})
  list(APPEND MK_LIBEDIT_ARCHIVES "${${name}}")
  if(NOT ${name})
    set(found FALSE)
  endif()
endforeach()
if(found)
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_INCLUDES "${MK_LIBEDIT_INCLUDE}")
  set(CMAKE_REQUIRED_LIBRARIES "${MK_LIBEDIT_ARCHIVES}")
  check_cxx_source_compiles("#include <cstdio>
#include <histedit.h>
int main() { return el_init(\"mk\", stdin, stdout, stderr) == nullptr; }" MK_LIBEDIT_STATIC)
  unset(CMAKE_REQUIRED_INCLUDES)
  unset(CMAKE_REQUIRED_LIBRARIES)
endif()

if(NOT TARGET MkLibedit)
  add_library(MkLibedit INTERFACE)
  target_include_directories(MkLibedit SYSTEM INTERFACE "${MK_LIBEDIT_INCLUDE}")
  if(found AND MK_LIBEDIT_STATIC)
    target_link_libraries(MkLibedit INTERFACE ${MK_LIBEDIT_ARCHIVES})
  else()
    find_library(MK_LIBEDIT edit REQUIRED)
    target_link_libraries(MkLibedit INTERFACE "${MK_LIBEDIT}")
  endif()
endif()
