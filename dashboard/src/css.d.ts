declare module "*.css"; // bundled by esbuild
