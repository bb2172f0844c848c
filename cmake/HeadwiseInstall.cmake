# `cmake --install`, then find_package(headwise) elsewhere: target headwise::headwise, headers <headwise/...>.
include(CMakePackageConfigHelpers)

install(TARGETS headwise EXPORT headwise_targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/headwise DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT headwise_targets NAMESPACE headwise:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/headwise)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/headwiseConfig.cmake.in
  ${PROJECT_BINARY_DIR}/headwiseConfig.cmake INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/headwise)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/headwiseConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/headwiseConfig.cmake ${PROJECT_BINARY_DIR}/headwiseConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/headwise)
if(HEADWISE_BUILD_APPS)
  install(TARGETS headwise_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
