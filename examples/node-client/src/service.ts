/** A service, and one connection for all its sessions. */

import { fileURLToPath } from "node:url";

import * as grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

import { DraftError } from "./errors.js";

const PROTO = fileURLToPath(new URL("../../../proto", import.meta.url));
const definition = loadSync("rest_store/v1/datastore.proto", { includeDirs: [PROTO], longs: Number, defaults: true });
const { DatastoreService } = (grpc.loadPackageDefinition(definition) as any).rest_store.v1;

const CONNECT_MS = 20_000;

export type Call = grpc.ClientDuplexStream<any, any>;

export class Service {
  private constructor(
    private readonly client: any,
    private readonly metadata: grpc.Metadata,
    private readonly description: any,
  ) {}

  /** Connect to HOST:PORT or unix:/path; raises DraftError unless a service that runs sessions is there. */
  static async connect(target: string, token = process.env.REST_STORE_TOKEN): Promise<Service> {
    const client = new DatastoreService(target, grpc.credentials.createInsecure());
    const metadata = new grpc.Metadata();
    if (token) metadata.set("authorization", `Bearer ${token}`);
    const options = { deadline: Date.now() + CONNECT_MS };
    const description: any = await new Promise((resolve, reject) =>
      client.describe({}, metadata, options, (error: grpc.ServiceError | null, answer: any) =>
        error ? reject(DraftError.from(error)) : resolve(answer),
      ),
    ).catch((error) => {
      client.close();
      throw error;
    });
    return new Service(client, metadata, description);
  }

  /** The most tokens of the text of a session. */
  get maxSessionTokens(): number {
    return this.description.limits.maxSessionTokens;
  }

  /** A new stream for a DraftSession. */
  draftSession(): Call {
    return this.client.draftSession(this.metadata);
  }

  close(): void {
    this.client.close();
  }
}
