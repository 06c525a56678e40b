/** Errors of a service: a gRPC status, and the reason that rest-store sends with it. */

import { status, type ServiceError } from "@grpc/grpc-js";
import protobuf from "protobufjs";

// What the trailing metadata `grpc-status-details-bin` holds, as far as it is read here.
const { root } = protobuf.parse(`syntax = "proto3";
  message Any { string type_url = 1; bytes value = 2; }
  message Status { repeated Any details = 3; }
  message ErrorInfo { string reason = 1; string domain = 2; }`);
const [Status, ErrorInfo] = [root.lookupType("Status"), root.lookupType("ErrorInfo")];

// The request is wrong, or this client is: the same again meets the same answer.
const REFUSALS = new Set([
  status.INVALID_ARGUMENT,
  status.FAILED_PRECONDITION,
  status.NOT_FOUND,
  status.UNAUTHENTICATED,
  status.PERMISSION_DENIED,
  status.UNIMPLEMENTED,
]);

/** `reason` is one of the table in datastore.proto, or empty where gRPC itself failed. */
export class DraftError extends Error {
  constructor(readonly code: status, readonly reason: string, details: string) {
    super(`${reason || status[code]}: ${details}`);
  }

  static from(error: ServiceError): DraftError {
    const packed = error.metadata?.get("grpc-status-details-bin")[0] as Buffer | undefined;
    const details: any[] = packed ? (Status.decode(packed) as any).details : [];
    const infos: any[] = details
      .filter((detail) => detail.typeUrl.endsWith("/google.rpc.ErrorInfo"))
      .map((detail) => ErrorInfo.decode(detail.value));
    const reason = infos.find((info) => info.domain === "rest-store")?.reason ?? "";
    return new DraftError(error.code, reason, error.details);
  }

  /** Whether the same request may succeed later: the service is away, overloaded or broken. */
  get passes(): boolean {
    return !REFUSALS.has(this.code) && this.reason !== "MESSAGE_SIZE";
  }
}
